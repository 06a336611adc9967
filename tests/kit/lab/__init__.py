"""A cluster on one Linux machine: hosts in namespaces, each with its own sshd, joined by a switch
with shaped links.

For laptops and CI, where several machines are wanted and one is there. All hosts share the
machine's cores, memory and files; their names, networks, processes and shared memory are their own.
Needs root, and Debian's iproute2, openssh-server, openssh-client and util-linux. Nothing of it
appears outside: no address, no link, no change to anybody's ssh files.
"""

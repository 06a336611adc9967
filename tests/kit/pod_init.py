"""The first process of a pod: makes its root and becomes its command.

Standard library; run in new namespaces by ``pods.py``.

The root is the machine's files, which the user cannot write, and an /etc, /home, /root, /tmp and
/run of the pod's own. In /etc and /home stands what kubeflow/mpi-operator's build/base/Dockerfile
puts there.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

OWN = ("etc", "home", "root", "tmp", "run")
HOME = "/home/mpiuser"
SSH_CONFIG = (
    "Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    Port {port}\n"
)
SSHD_CONFIG = "PidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nPort {port}\n"


def main():
    spec = json.loads(Path(sys.argv[1]).read_text())
    socket.sethostname(spec["hostname"])
    root = Path("/run/pod")
    root.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", root)
    show_machine(root, spec["holds"])
    write_image(root, spec)
    for path, source in spec["mounts"].items():
        show_volume(root / path.lstrip("/"), source, spec["group"])
    os.chroot(root)
    os.chdir(spec["folder"])
    user, group = spec["user"], spec["group"]
    argv = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={group}",
        "--clear-groups",
        "--",
        *spec["command"],
    ]
    os.execvpe("setpriv", argv, spec["environment"] | {"HOME": HOME})


def show_machine(root, holds):
    for entry in os.scandir("/"):
        there = root / entry.name
        if entry.is_symlink():
            there.symlink_to(Path(entry.path).readlink())
        elif entry.name in OWN:
            there.mkdir(mode=0o1777 if entry.name == "tmp" else 0o755)
        elif entry.is_dir():
            there.mkdir()
            mount("--rbind", entry.path, there)
    (root / "tmp").chmod(0o1777)
    for folder in holds:
        there = root / folder.lstrip("/")
        if not there.exists():  # it lies in one of the pod's own
            there.mkdir(parents=True)
            mount("--bind", folder, there)
    shutil.copytree("/etc", root / "etc", symlinks=True, dirs_exist_ok=True)


def write_image(root, spec):
    user, group = spec["user"], spec["group"]
    lines = {
        "passwd": f"mpiuser:x:{user}:{group}::{HOME}:/bin/bash",
        "group": f"mpiuser:x:{group}:",
    }
    for name, line in lines.items():
        file = root / "etc" / name
        file.write_text(f"{line}\n{file.read_text()}")  # goes before the machine's of that number
    (root / "etc" / "hosts").write_text(spec["hosts"])
    (root / "etc" / "ssh" / "ssh_config").write_text(SSH_CONFIG.format(port=spec["ssh_port"]))
    home = root / HOME.lstrip("/")
    home.mkdir()
    (home / ".sshd_config").write_text(SSHD_CONFIG.format(port=spec["ssh_port"]))
    os.chown(home, user, group)


def show_volume(path, source, group):
    path.mkdir(parents=True, exist_ok=True)
    if source is None:
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", path)
        return
    mount("--bind", source, path)
    os.chown(path, -1, group)
    path.chmod(0o2775)


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


main()

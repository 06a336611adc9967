"""Hosts: hostfiles, which rank goes where, and whether ranks can start there. Imports no torch."""

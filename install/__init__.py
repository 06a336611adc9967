"""Set-up: the pinned versions, and the build of Horovod from its source distribution.

Set-up runs before Ringside is installed, so this package imports only the standard library.
"""

"""Set-up: the pinned versions, and Horovod built from its source distribution.

Runs before anything is installed, so nothing here needs more than the standard library, and nothing here imports
another room.
"""

"""One arm in one launch, seen from the driver: its processes, its commands and replies, and what
becomes of it if it fails.
"""

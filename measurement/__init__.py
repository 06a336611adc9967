"""What a run is, how it is timed and what is written down.

Imports no other room, and torch only where it times a GPU.
"""

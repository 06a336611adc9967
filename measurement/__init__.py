"""What a run is, how it is timed and what is written down.

Imports no other room, and torch only inside the functions that need it.
"""

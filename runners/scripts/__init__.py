"""Arms by command: the user's scripts, unmodified, measured by an agent in their own
interpreters.
"""

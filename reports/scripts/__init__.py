"""Scripts of users: what they do differently, whether they train alike, how their losses compare.

Pure functions of records.
"""

"""A comparison seen from the driver: launches, rounds, gates, and what becomes of an arm that
fails.
"""

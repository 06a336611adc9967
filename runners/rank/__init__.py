"""One rank: it builds, trains or repeats, times itself and reports.

A launcher starts it; the driver gives it commands.
"""

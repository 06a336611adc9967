"""What is read of a script, before and after its steps are timed: its models, settings, data and
results.
"""

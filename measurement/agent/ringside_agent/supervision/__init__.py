"""The processes beside ranks that stop, continue and end them, and what they and the driver say to each other.

Standard library only, Python 3.8 or later, as all of the agent.
"""

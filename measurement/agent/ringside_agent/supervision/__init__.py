"""The processes beside ranks that stop, continue and end them, and their protocol with the driver.

Standard library only, Python 3.8 or later, as all of the agent.
"""

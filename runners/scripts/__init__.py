"""Arms by command: how scripts of the user's are started, and how their ranks talk to the driver."""

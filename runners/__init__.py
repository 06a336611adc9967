"""How a run happens: launchers, the worker on every rank, the driver that compares, the command line. Nothing imports it."""

"""What the driver and the ranks tell each other, and the records that come of it: the only thing that both know."""

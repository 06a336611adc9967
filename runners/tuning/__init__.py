"""``ringside tune``: searches each arm's settings on one budget, and confirms what it found by fresh launches."""

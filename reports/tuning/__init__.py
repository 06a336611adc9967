"""What a search for the fastest settings found: the effect of each, the best of each arm, and how fresh launches judge them."""

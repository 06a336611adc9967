"""What a search for an arm's fastest settings came to: what was tried, and what fresh launches say of the best."""

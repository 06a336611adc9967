"""What must be equal for a comparison, and what may disturb it."""

"""What is asked for: a plan, its files, its points and its digest."""

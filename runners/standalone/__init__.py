"""Runs without a driver: the ranks that a person started measure themselves, and rank 0 writes the record."""

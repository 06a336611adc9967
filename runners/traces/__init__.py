"""Traces: a few untimed steps of every rank, and the files that viewers open."""

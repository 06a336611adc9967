"""Results of one plan at several dates: a new one against an earlier one, and the history of many."""

"""A result held against an earlier one of the same plan."""

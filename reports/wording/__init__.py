"""Sentences and formatted figures, the same in every format."""

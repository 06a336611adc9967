"""Figures, as plotly draws them."""

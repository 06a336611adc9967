"""Plug-ins as somebody else writes them, each in one file; tests copy them out of the tree, or
install them."""

"""The files and the terminal: one module per format."""

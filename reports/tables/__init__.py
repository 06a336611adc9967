"""What the tables of every format hold: columns, rows, entries."""

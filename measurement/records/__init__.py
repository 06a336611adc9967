"""What is written: records of launches, a folder of results, tables of steps."""

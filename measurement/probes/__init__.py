"""What is read while ranks run: clocks, counters, host facts, versions."""

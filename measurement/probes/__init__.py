"""What is read while ranks work: clocks, threads, cores, the host, the versions."""

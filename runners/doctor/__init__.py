"""What is installed, built and reachable on this machine, and the remedy for what is not."""

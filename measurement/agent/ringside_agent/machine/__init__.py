"""What the kernel and the environment tell of this process and its host."""

"""Facts of this process and its host, from the kernel and the environment."""

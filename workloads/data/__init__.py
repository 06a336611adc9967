"""Files that workloads read, and how batches come from them."""

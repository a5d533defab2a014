"""One run on several processes: rank 0 leads, and each rank computes a block of the clients."""

"""The local engines: stacked clients in one process, on a CPU or a GPU."""

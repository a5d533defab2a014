"""The local engine: stacked clients in one process, on a CPU or a GPU."""

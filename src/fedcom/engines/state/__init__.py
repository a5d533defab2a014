"""Where clients' state lives between rounds: in memory, on the host or on disk."""

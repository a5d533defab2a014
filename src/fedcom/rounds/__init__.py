"""One round, the same for every engine: what clients do, what the server does, and what is refused."""

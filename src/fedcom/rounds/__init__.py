"""One round, once for every engine."""

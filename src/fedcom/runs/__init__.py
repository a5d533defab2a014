"""One run and its folder: from a config to results on disk."""

"""Files that are whole or not there, and checkpoints made of them."""

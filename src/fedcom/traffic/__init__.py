"""What travels: links and their codecs, the books of every byte, and modelled time."""

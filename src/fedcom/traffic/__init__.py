"""What is sent: links and their codecs, a ledger of every byte, and modelled time."""

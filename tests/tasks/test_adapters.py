"""Adapters: what is trained, sent, kept and shared; each way of training them by hand."""

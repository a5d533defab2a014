"""Engines: where clients run. All of them run the functions of fedcom/rounds/round.py."""

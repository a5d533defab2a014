"""Engines: where clients run. All of them use the functions of fedcom/rounds/round.py."""

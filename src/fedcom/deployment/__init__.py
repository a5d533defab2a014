"""Runs on real machines: a user's model and data as a job, and Flower to carry its messages."""

"""Loops that torch cannot express well: compiled by numba for a CPU, by Triton for a GPU."""

"""Loops that torch has no words for, on a CPU by numba and on a GPU by Triton."""

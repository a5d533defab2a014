"""Many runs as one: comparisons, sweeps, and the codec report card."""

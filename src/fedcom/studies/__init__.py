"""Commands that run many things at once: comparisons, sweeps, and the codec report card."""

"""Experiments: one run, the grid of runs that are compared, and the store of their results."""

"""What selection costs, measured as ratios within one run; ``python -m benchmarks`` makes the table."""

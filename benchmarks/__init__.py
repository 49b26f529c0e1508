"""Figures as ratios, each measured beside its comparison in the same run: `python -m benchmarks
[letter ...] [--quick]`."""

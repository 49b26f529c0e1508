"""The checks of `penstock doctor`, and those that a worker makes before it starts."""

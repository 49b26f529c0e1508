"""What lanes that host an engine have in common: when it counts as dead, and how a worker ends that
has none."""

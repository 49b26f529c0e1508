"""What `python -m benchmarks.engine` is made of: the machine's setup, items, what runs them, and
the cases."""

"""What `python -m benchmarks.engine` is made of: the machine's setup, items, whoever runs them, and the cases."""

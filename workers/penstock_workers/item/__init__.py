"""The life of one item in a worker."""

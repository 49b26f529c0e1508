"""The same limiters for code that blocks: threads, prefork pools, gunicorn."""

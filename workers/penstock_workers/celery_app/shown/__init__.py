"""What Celery's events, its `inspect` and Flower see of an item."""

"""Celery's surfaces: app, consumer, strategy, pool, drain, probe, events."""

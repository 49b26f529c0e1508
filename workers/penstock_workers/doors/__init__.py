"""The doors for services that have a Celery client and nothing of ours."""

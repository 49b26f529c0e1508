"""Do work: the Celery app, broker transport, asyncio pool, runner, lanes, settle and reconcile."""

"""Do work: the Celery app, broker transport, asyncio pool, runner, lanes, settle and reconcile.

Outsiders use `penstock_workers.app` (Celery's `-A`), `penstock_workers.hooks` (what a job's
functions import) and `penstock_workers.http`. What other packages of Penstock use stands in
tests/contract/test_boundaries.py.
"""

__all__: list[str] = []

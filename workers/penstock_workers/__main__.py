"""Start one worker process: Celery's own worker for a lane, or the control loop alone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from penstock_ledger.redaction import log_to_stderr
from penstock_producer.job.lanes import DEFAULT_LANE
from penstock_workers.settings import WorkerSettings, process_name

if TYPE_CHECKING:
    from penstock_workers.celery_app.app import PenstockApp

__all__ = ["run_worker"]


def run_worker(
    lane: str,
    *,
    concurrency: int | None = None,
    name: str | None = None,
    hosted: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Run until SIGTERM, and exit: 0 after a drain.

    ``hosted`` overrides the lane's own settings (`gpu`, `embed`).

    Raises SettingsError for unusable settings, and UnknownLane.
    """
    log_to_stderr()
    overrides = {lane: dict(hosted)} if hosted else {}
    settings = WorkerSettings.load(lane=lane, concurrency=concurrency, **overrides)
    settings.refuse_shared_roots()
    from penstock_workers.background import exit_process
    from penstock_workers.celery_app.app import create_app
    from penstock_workers.lanes.registry import check_lane

    check_lane(settings.lane)
    exit_process(_worker_main(create_app(settings), name or f"{lane}-{process_name()}@%h"))


def _worker_main(app: PenstockApp, name: str) -> int:
    """Run Celery's worker and return the exit status, which ``app.worker_main`` drops."""
    from celery.utils.nodenames import default_nodename, host_format

    from penstock_workers.celery_app.ending import MACHINE_END, THIS_PROCESS

    # Not through Celery's command line: that imports Flower, a prompt and a highlighter, a third of
    # a worker's start.
    worker = app.Worker(
        hostname=host_format(default_nodename(name)),
        loglevel=logging.WARNING,
        without_mingle=True,
        without_gossip=True,
    )
    worker.start()
    status = int(worker.exitcode or THIS_PROCESS.status)
    if not status:
        MACHINE_END.stay()
    return status


if __name__ == "__main__":
    run_worker(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_LANE)

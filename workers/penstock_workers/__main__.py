"""Start one worker process: Celery's own worker for a lane, or the control loop alone for the lane `control`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from penstock_workers.probe import ProbeFiles
from penstock_workers.settings import WorkerSettings, process_name

CONTROL_LANE = "control"


def run_worker(
    lane: str, *, concurrency: int | None = None, name: str | None = None, hosted: Mapping[str, Any] | None = None
) -> None:
    """Run until SIGTERM. ``hosted`` overrides the lane's own settings (`gpu`, `embed`).

    Raises SettingsError for unusable settings; Celery ends the process itself.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if lane == CONTROL_LANE:
        run_control_alone(WorkerSettings.load())
        return
    overrides = {lane: dict(hosted)} if hosted else {}
    settings = WorkerSettings.load(lane=lane, concurrency=concurrency, **overrides)
    from penstock_workers.app import create_app

    app = create_app(settings)
    app.worker_main([
        "worker", "--loglevel", "WARNING", "--without-mingle", "--without-gossip",
        "-n", name or f"{lane}-{process_name()}@%h",
    ])  # fmt: skip


def run_control_alone(settings: WorkerSettings) -> None:
    """Feed, promote, reconcile and finish, and nothing else: a fleet's control pool."""
    from penstock_workers.control import start_control
    from penstock_workers.metrics import start_metrics

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    probes = ProbeFiles(settings.probe_dir)
    with start_control(settings, probes) as control, start_metrics(settings, control.figures):
        probes.started()
        probes.ready()
        stop.wait()
        probes.unready()


if __name__ == "__main__":
    run_worker(sys.argv[1] if len(sys.argv) > 1 else "api")

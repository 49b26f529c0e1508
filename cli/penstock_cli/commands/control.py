"""`penstock control`: what keeps jobs moving, in a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer


def control(
    name: Annotated[
        str | None, typer.Option(help="Names this process in Flower and in logs.")
    ] = None,
) -> None:
    """Feed, promote, reconcile and finish jobs, and take jobs that Celery clients send; no document
    is run here.

    Run two for safety: each feed is led by one of them. Workers beside it get
    PENSTOCK_CONTROL=false. SIGTERM ends it.
    """
    from penstock_cli.doctor.worker import check
    from penstock_workers.__main__ import run_worker
    from penstock_workers.settings import CONTROL_LANE, WorkerSettings

    check(WorkerSettings.load(lane=CONTROL_LANE))
    run_worker(CONTROL_LANE, name=name)

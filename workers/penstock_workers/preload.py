"""Imports all that a worker process needs, while its settings are not known yet."""

from __future__ import annotations

from importlib import import_module

from penstock_workers.lanes.registry import lane_row

__all__ = ["preload"]

MODULES = (
    "celery.apps.worker",
    "celery.worker.worker",
    "celery.worker.consumer",
    "penstock_workers.__main__",
    "penstock_workers.build",
    "penstock_workers.celery_app.app",
    "penstock_workers.celery_app.consumer",
    "penstock_workers.celery_app.pool",
    "penstock_workers.celery_app.handover",
    "penstock_workers.celery_app.requests",
)


def preload(lane: str) -> None:
    """Import everything that a worker of this lane runs with.

    Engines are left out: their lanes load those."""
    for name in (*MODULES, *lane_row(lane).modules):
        import_module(name)

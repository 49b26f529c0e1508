"""The app for Celery's own command line, ``celery -A penstock_workers.app worker``.

``create_app`` makes one with your settings.
"""

from __future__ import annotations

from penstock_workers.celery_app.app import PenstockApp, create_app
from penstock_workers.settings import WorkerSettings

__all__ = ["app", "create_app"]

app: PenstockApp


def __getattr__(name: str) -> PenstockApp:
    """Make ``app`` from the settings of this process when Celery's command line asks for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    settings = WorkerSettings.load()
    settings.refuse_shared_roots()
    made = globals()["app"] = create_app(settings)
    return made

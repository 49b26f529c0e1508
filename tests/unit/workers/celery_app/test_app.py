"""What a worker's Celery app is configured for."""

from __future__ import annotations

import pytest

from penstock_workers.celery_app.app import create_app
from penstock_workers.settings import WorkerSettings


@pytest.mark.parametrize("allowed", [True, False])
def test_remote_control_is_a_setting(allowed: bool) -> None:
    """Celery's remote control, which can end workers, is closed by `remote_control = false`
    (B30)."""
    app = create_app(WorkerSettings(database_url="sqlite:///x.db", remote_control=allowed))
    assert app.conf.worker_enable_remote_control is allowed


def test_no_tasks_of_celerys_own_are_served() -> None:
    """`celery.map`, `celery.chunks`, `celery.group` and others like them, which run or send other
    tasks, are unknown to workers (B30)."""
    app = create_app(WorkerSettings(database_url="sqlite:///x.db"))
    doors = {"penstock.submit", "penstock.open_job", "penstock.enqueue", "penstock.close_job"}
    assert set(app.tasks) == {"penstock.item"} | doors

"""Refused settings name themselves, and never show what may be a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock_ledger import redaction
from penstock_producer.errors import SettingsError
from penstock_workers.celery_app.requests import ItemRequest
from penstock_workers.item.failures import Failure
from penstock_workers.settings import WorkerSettings

KEY = "canary-8f3b1c0d-not-a-known-shape"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(redaction, "_texts", ())
    monkeypatch.setattr(redaction, "_bytes", ())


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PENSTOCK_REDIS_URL", f"redis://:{KEY}/with@slash@cache:6379/0", "%-encode"),
        ("PENSTOCK_REDIS_URL", f"http://fleet:{KEY}@cache:6379/0", "redis_url"),
        ("PENSTOCK_DATABASE_URL", f"mysql://fleet:{KEY}@db/penstock", "database_url"),
        ("PENSTOCK_PROVIDERS__MINE__API_KEY", KEY, "providers.mine.api_key"),
        ("PENSTOCK_PROVIDERS", f'[{{"api_key": "{KEY}"}}]', "providers"),
        ("PENSTOCK_PROVIDERS__MINE__API_KEY_ENV", KEY, "the NAME of the variable"),
        (
            "PENSTOCK_PROVIDERS__MINE__API_KEY_ENV",
            "gsk_0123456789abcdefghij",
            "the NAME of the variable",
        ),
        ("PENSTOCK_GPU__ENGINE", f'"hf_token={KEY}"', "gpu.engine"),
    ],
)
def test_refused_settings_show_no_secret(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key or password in the wrong place or form is refused with the setting's name, and not
    shown (B17)."""
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("SOME_API_KEY", KEY)
    with pytest.raises(SettingsError, match=told) as refused:
        WorkerSettings.load()
    assert KEY not in str(refused.value)
    assert "gsk_0123456789abcdefghij" not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PENSTOCK_REDIS_URL", "redis://:CHANGE_ME@cache:6379/0"),
        ("PENSTOCK_DATABASE_URL", "postgresql://penstock:CHANGE_ME@db/penstock"),
        ("PENSTOCK_BROKER_URL", "amqp://fleet:CHANGE_ME@rabbit/jobs"),
    ],
)
def test_an_example_password_starts_nothing(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is given the password of our example refuses to start, and says how to get one
    (B26)."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=r"the example's password.*docker/passwords\.py"):
        WorkerSettings.load()


def test_a_failure_holds_no_key() -> None:
    """Whatever is kept, shown or stored of a failure starts from words without our keys (B14)."""
    redaction.remember(KEY)
    assert Failure("bad_request", f"you sent {KEY}", 400).detail == "you sent [redacted]"
    assert Failure("hook_failed", f"environ: {KEY}"[:30], None).detail == "environ: [redacted]"


def test_events_hold_no_key() -> None:
    """The words of a failed task reach Celery's events without secrets and control characters
    (B23)."""

    class CallAnswer(ItemRequest):
        def __init__(self, eventer: Any) -> None:
            self._eventer, self._announced = eventer, True
            self.id = "job:doc"

    class Eventer:
        enabled, groups = True, None

        def send(self, type: str, **fields: Any) -> None:
            self.sent = (type, fields)

    redaction.remember(KEY)
    eventer = Eventer()
    CallAnswer(eventer).send_event("task-failed", exception=f"refused {KEY}\x1b[2J", traceback=None)
    assert eventer.sent == (
        "task-failed",
        {"uuid": "job:doc", "exception": "refused [redacted]\\x1b[2J", "traceback": None},
    )

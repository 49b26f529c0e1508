"""What results are made with is noted before the first of them, once a minute after that, and in
bounded numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
from attempts import make_attempt

from penstock_ledger import RENOTED_S, MadeWith, Provenance
from penstock_ledger.model import Result
from penstock_workers.item.attempt import Settled
from penstock_workers.item.outcome import Done
from penstock_workers.item.settling.records import KEPT, MODELS, MadeWithNotes
from penstock_workers.settings import ProviderSettings


class Notes:
    """What was written, call by call."""

    def __init__(self) -> None:
        self.written: list[list[tuple[str, MadeWith]]] = []

    def note(self, made: Iterable[tuple[str, MadeWith]]) -> None:
        self.written.append(list(made))


def done(model: str | None, job_id: str = "job") -> Settled:
    settings = ProviderSettings(usd_per_mtok_in=1, usd_per_mtok_out=2)
    attempt = make_attempt(job_id=job_id, settings=settings, model="asked")
    return Settled(
        attempt, Done(Result(attempt.key, 200, b"{}", None, model, "stop", 1, 1, 0, 1, 1, 1))
    )


def test_each_model_is_noted_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its prices; a group whose combinations are known writes nothing until the minute is
    over."""
    now = [1_000.0]
    monkeypatch.setattr("penstock_workers.item.settling.records.time.monotonic", lambda: now[0])
    store = Notes()
    notes = MadeWithNotes(cast(Provenance, store), "", 0.0)
    for _ in range(3):
        notes.note([done("small-1"), done("small-1"), done("big-1")])
    (first,) = store.written
    assert [(made.model, made.usd_per_mtok_in, made.usd_per_mtok_out) for _, made in first] == [
        ("small-1", 1, 2),
        ("big-1", 1, 2),
    ]
    now[0] += RENOTED_S
    notes.note([done("big-1")])
    assert [made.model for _, made in store.written[1]] == ["big-1"]


def test_a_server_that_names_another_model_each_time_is_bounded() -> None:
    """Some models of a job have entries of their own, all further ones are one entry; so many jobs
    are remembered."""
    store = Notes()
    notes = MadeWithNotes(cast(Provenance, store), "", 0.0)
    for number in range(3 * MODELS):
        notes.note([done(f"model-{number}")])
    models = [made.model for call in store.written for _, made in call]
    assert models == [*(f"model-{number}" for number in range(MODELS)), None]
    notes.note([done(f"other-{number}", "second") for number in range(3 * MODELS)])
    assert len(store.written[-1]) == MODELS + 1
    for number in range(KEPT):
        notes.note([done("m", f"job-{number}")])
    assert (len(notes._noted), notes._models.total(), len(notes._models)) == (KEPT, KEPT, KEPT)

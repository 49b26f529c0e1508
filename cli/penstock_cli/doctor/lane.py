"""`penstock doctor --lane`: what a worker of one lane needs of this machine.

Here a missing thing is refused, not warned of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from penstock_cli.doctor.finding import Finding, Verdict
from penstock_cli.errors import UsageProblem
from penstock_producer.reporting.text import safe


class AskedLane(NamedTuple):
    """What the command line asks for."""

    name: str
    model: str | None
    attempt: bool  # whether the model is loaded, for a run of one token


def asked_lane(name: str | None, model: str | None, *, attempt: bool) -> AskedLane | None:
    """Raises UsageProblem for flags that go with a lane, and for lanes that need nothing of a
    machine."""
    from penstock_workers.lanes.registry import REGISTRY

    if name is None:
        if model is not None or attempt:
            raise UsageProblem(
                "--model and --try go with --lane: name the lane whose worker would run here"
            )
        return None
    able = [row.name for row in REGISTRY.values() if row.inspect is not None]
    if name not in able:
        raise UsageProblem(
            f"--lane {name}: lanes whose workers host a model are {' and '.join(able)}; leave it "
            "out for others"
        )
    return AskedLane(name, model, attempt)


def inspect(asked: AskedLane) -> Iterator[Finding]:
    """By the settings of a worker of that lane."""
    from penstock_workers.lanes.one_run import one_run
    from penstock_workers.lanes.registry import lane_row
    from penstock_workers.settings import WorkerSettings

    own = {} if asked.model is None else {asked.name: {"model": asked.model}}
    row = lane_row(asked.name)
    assert row.inspect is not None, "asked_lane has looked"
    settings = WorkerSettings.load(lane=asked.name, **own)
    tries = one_run(row, settings, row.tries) if asked.attempt else ()
    for found in chain(row.inspect(settings), tries):
        verdict = Verdict.GOOD if found.is_good else Verdict.BAD
        yield Finding(verdict, asked.name, safe(found.seen), safe(found.fix))

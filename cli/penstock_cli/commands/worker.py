"""`penstock worker`: one worker process of the fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from penstock_producer.job.lanes import lanes_in_words


def worker(
    lane: Annotated[str, typer.Option(help=f"What this worker does: {lanes_in_words('or')}.")],
    concurrency: Annotated[
        int | None, typer.Option("-c", "--concurrency", min=1, help="Items in flight in this process.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Names this worker in Flower and in logs.")] = None,
    model: Annotated[str | None, typer.Option(help="gpu, embed: the model to host, a folder or a name.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="gpu: one of vLLM's own arguments, e.g. tensor_parallel_size=2. Repeatable."),
    ] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="gpu: an adapter that requests may name, NAME=FOLDER. Repeatable.")
    ] = None,
) -> None:
    """Run one worker process; SIGTERM lets it finish what it holds.

    Everything else is read from penstock.toml and PENSTOCK_* variables.
    """
    from penstock_cli.job.jobspec import parse_pairs
    from penstock_cli.run.orphan import end_with_parent
    from penstock_cli.settings import parent_pid

    parent = parent_pid()
    if parent is not None:
        end_with_parent(parent)
    from penstock_cli.doctor.worker import check
    from penstock_workers.__main__ import run_worker
    from penstock_workers.lanes.registry import check_lane
    from penstock_workers.settings import WorkerSettings

    check_lane(lane)
    given = {
        "model": model,
        "engine": parse_pairs("--engine", engine or []),
        "lora": parse_pairs("--lora", lora or []),
    }
    hosted = {key: value for key, value in given.items() if value}
    _refuse_foreign_flags(lane, hosted)
    check(WorkerSettings.load(lane=lane, concurrency=concurrency, **({lane: hosted} if hosted else {})))
    run_worker(lane, concurrency=concurrency, name=name, hosted=hosted)


def _refuse_foreign_flags(lane: str, given: Iterable[str]) -> None:
    """Raises UsageProblem for a flag that sets what this lane does not have."""
    from penstock_cli.errors import UsageProblem
    from penstock_workers.lanes.registry import REGISTRY

    for name in given:
        takers = [row.name for row in REGISTRY.values() if row.settings and name in row.settings.model_fields]
        if lane not in takers:
            raise UsageProblem(
                f"--{name} is for workers of lane {' or '.join(takers)}, and this one serves lane {lane}: leave it out"
            )

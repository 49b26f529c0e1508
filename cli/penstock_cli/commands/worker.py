"""`penstock worker`: one worker process of the fleet."""

from __future__ import annotations

from typing import Annotated

import typer


def worker(
    lane: Annotated[str, typer.Option(help="What this worker does: api, gpu, embed or batch.")],
    concurrency: Annotated[
        int | None, typer.Option("-c", "--concurrency", min=1, help="Items in flight in this process.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Names this worker in Flower and in logs.")] = None,
) -> None:
    """Run one worker process; SIGTERM lets it finish what it holds.

    Everything else is read from penstock.toml and PENSTOCK_* variables.
    """
    from penstock_cli.orphan import end_with_parent
    from penstock_cli.settings import parent_pid

    parent = parent_pid()
    if parent is not None:
        end_with_parent(parent)
    from penstock_workers.__main__ import run_worker

    run_worker(lane, concurrency=concurrency, name=name)

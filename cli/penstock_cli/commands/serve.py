"""The command `penstock serve`: its flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.job import options
from penstock_cli.job.flags import takes_flags
from penstock_cli.job.options import ProviderFlags
from penstock_producer.job.lanes import AUTO, DEFAULT_LANE

DEFAULT_STATE = Path("penstock-state")


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """The options of `penstock serve` itself."""

    port: Annotated[
        int,
        typer.Option(
            "-p", "--port", min=0, max=65_535, help="0 takes a free port, which is shown."
        ),
    ] = 8080
    state: Annotated[
        Path,
        typer.Option(
            help=(
                "Folder of the queue, the ledger and the files. The same folder goes on with its "
                "jobs."
            )
        ),
    ] = DEFAULT_STATE
    host: Annotated[
        str,
        typer.Option(
            help="Any other address needs an API key: penstock keys create NAME --state DIR."
        ),
    ] = "127.0.0.1"
    lane: Annotated[
        str,
        typer.Option(
            help=(
                f"What answers: api, gpu or embed; batch: provider batches alone; {AUTO}: batches "
                "where there is time, else api."
            )
        ),
    ] = DEFAULT_LANE
    model: Annotated[
        str | None,
        typer.Option(help="gpu, embed: the model that the workers host, a folder or a name."),
    ] = None
    workers: options.Workers = None
    concurrency: options.Concurrency = None
    no_progress: options.NoProgress = False


@takes_flags
def serve(typed: ServeFlags, provider: ProviderFlags) -> None:
    """Serve APIs, workers and a dashboard on this machine, with nothing else to start.

    It serves OpenAI's Files and Batches, Anthropic's Message Batches, calls that wait for their
    answer, and jobs. Ctrl-C lets the requests in flight finish, then ends; the same command goes on
    with the jobs.

    Exit status: 0 ended by Ctrl-C or SIGTERM, 2 bad usage, 1 failed.
    """
    from penstock_cli.processes.standby import Standby
    from penstock_cli.run.serve import ServeRequest, lanes_of, worker_lanes

    request = ServeRequest(
        typed.host,
        typed.port,
        typed.state,
        typed.lane,
        typed.model,
        provider,
        typed.workers,
        typed.concurrency,
        panel=not typed.no_progress,
    )
    first = worker_lanes(lanes_of(request.lane), request.workers)[0]
    with Standby(first) as standby:  # first of all: its imports take the longest
        from penstock_cli.run.serve import serve_local

        raise typer.Exit(serve_local(request, standby))

"""`penstock doctor`, which checks that everything is there that a job needs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from penstock_cli.errors import EXIT_FAILED
from penstock_cli.job import options


def doctor(
    provider: Annotated[
        bool, typer.Option(help="Also ask each configured provider for its models.")
    ] = True,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Create or upgrade the tables of the database.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Report a refusal of this subject as a warning, because you know it to be safe. "
                "Repeatable."
            )
        ),
    ] = None,
    lane: Annotated[
        str | None,
        typer.Option(
            help="Look at all that a worker of this lane needs of this machine: gpu or embed."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --lane: the model to look at, in place of the settings'."),
    ] = None,
    attempt: Annotated[
        bool,
        typer.Option(
            "--try", help="With --lane: load the model and run one token, as a worker would."
        ),
    ] = False,
    state: options.StateOption = None,
) -> None:
    """Check what a job needs and what is unsafe, and say how to repair it.

    Exit status: 0 nothing is refused (there may be warnings), 1 something is `bad`.
    """
    from rich.text import Text

    from penstock_cli.doctor.checks import examine
    from penstock_cli.doctor.fleet import asked_lane
    from penstock_cli.doctor.worker import Verdict
    from penstock_cli.show.terminal import console as make_console

    console = make_console()
    styles = {Verdict.GOOD: "green", Verdict.WARNING: "yellow", Verdict.BAD: "red"}
    seen = Counter[Verdict]()
    wanted = asked_lane(lane, model, attempt=attempt)
    for finding in examine(
        state, knock=provider, migrate=migrate, accept=accept or (), lane=wanted
    ):
        seen[finding.verdict] += 1
        mark = Text.assemble(
            (f"{finding.verdict:<5}", styles[finding.verdict]),
            f"{finding.subject:<12}",
            finding.seen,
        )
        console.print(mark, soft_wrap=True)
        if finding.fix:
            console.print(Text(f"{'':<17}{finding.fix}", style="dim"), soft_wrap=True)
    refused, warned = seen[Verdict.BAD], seen[Verdict.WARNING]
    console.print(
        Text(f"{refused} refused, {warned} warnings, {seen[Verdict.GOOD]} good"), soft_wrap=True
    )
    raise typer.Exit(EXIT_FAILED if refused else 0)

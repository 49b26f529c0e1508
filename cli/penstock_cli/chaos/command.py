"""`penstock chaos`: the command."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from penstock_cli.chaos.campaign import Campaign
    from penstock_cli.chaos.stage import Fault

MAX_SEED = 1_000_000  # short enough to be typed


def chaos(
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Decides which faults come when. Default: one that is shown."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Go on with pairs of faults for so long. Default: each fault once."
        ),
    ] = None,
    documents: Annotated[
        int | None, typer.Option(min=50, help="In each job, of which there is one for a fault.")
    ] = None,
    lane: Annotated[str, typer.Option(help="api, batch, gpu or embed.")] = "api",
    faults: Annotated[
        str | None,
        typer.Option(help="Names or groups with commas between. Default: all of the lane."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show the faults and their groups, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON; progress goes to stderr.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="A new folder for ledger and logs, kept. Default: a temporary one."),
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="Use this Redis, on which no worker may be at work.")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="Use this database, PostgreSQL for its faults.")
    ] = None,
    postgres: Annotated[
        bool,
        typer.Option(
            "--postgres",
            help="Keep the ledger in a PostgreSQL of its own, whose programs are on this machine.",
        ),
    ] = False,
    break_mine: Annotated[
        bool,
        typer.Option(
            "--break-mine",
            help="Permit it for servers given by URL: all of that Redis is lost (FLUSHALL), and "
            "connections to the database are ended.",
        ),
    ] = False,
) -> None:
    """Break a fleet on purpose, from a seed, and audit that it keeps its promises.

    It starts a Redis, a ledger, workers and a simulated provider of its own, runs a job under each
    fault, and checks that every document has one outcome, that no more was paid twice than was in
    flight, that the books hold what the provider billed, and that work went on by itself. Then it
    ends everything that it started. No key is needed and nothing is spent. A fault takes some
    twenty seconds, all of a lane a quarter of an hour.

    Exit status: 0 every promise held, 4 one was broken, 2 bad usage, 1 failed, 130 interrupted.
    """
    from penstock_cli.chaos.campaign import Campaign, chosen
    from penstock_cli.chaos.stage import LANES
    from penstock_cli.errors import UsageProblem
    from penstock_cli.show.terminal import aligned

    if lane not in LANES:
        raise UsageProblem(f"--lane: chaos knows {', '.join(LANES)}, not {lane!r}")
    wanted = chosen(faults, lane)
    if listed:
        rows = [(one.name, one.group, one.does) for one in wanted]
        typer.echo("\n".join(aligned(("fault", "group", "what it does"), rows)))
        return
    if (redis_url or database_url) and not break_mine:
        raise UsageProblem(
            "--redis-url and --database-url are servers of yours, and chaos empties that Redis and "
            "ends connections to that database: add --break-mine where they may be broken"
        )
    if postgres and database_url:
        raise UsageProblem("--postgres and --database-url are two ledgers: leave one of them out")
    if folder is not None and folder.exists():
        raise UsageProblem(f"--folder: {folder} is there already, and chaos begins with nothing")
    seed = random.randrange(MAX_SEED) if seed is None else seed
    campaign = Campaign(seed, lane, more=" --postgres" if postgres else "")

    def say(text: str) -> None:
        typer.echo(text, err=as_json)

    seconds = None if minutes is None else minutes * 60
    try:
        _run(
            campaign,
            wanted,
            Place(folder, redis_url, database_url, postgres),
            seconds,
            documents,
            say,
        )
    finally:  # of what chaos itself failed in, what was tried before is shown, too
        _show(campaign, say, as_json=as_json)
    _conclude(campaign, say, as_json=as_json)


class Place(NamedTuple):
    """Names the folder and the servers that were given."""

    folder: Path | None
    redis_url: str | None
    database_url: str | None
    postgres: bool


def _run(
    campaign: Campaign,
    faults: Sequence[Fault],
    given: Place,
    seconds: float | None,
    documents: int | None,
    say: Callable[[str], None],
) -> None:
    """Start everything, break it, end everything; an interrupt leaves what is known so far."""
    from penstock_cli.chaos.arena import arena
    from penstock_cli.chaos.campaign import fight
    from penstock_cli.chaos.stage import LANES, WORKERS, begin
    from penstock_cli.errors import Interrupted
    from penstock_cli.processes.signals import Interrupts

    say(f"penstock chaos {campaign.words}; Ctrl-C ends everything")
    lane, temporary = LANES[campaign.lane], given.folder is None
    place = given.folder or Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    try:
        with Interrupts() as interrupts, ExitStack() as exits:
            say(f"starting Redis, a ledger, a provider and {WORKERS} workers in {place}")
            there = exits.enter_context(
                arena(
                    place,
                    temporary=temporary,
                    redis_url=given.redis_url,
                    database_url=given.database_url,
                    postgres=given.postgres,
                )
            )
            exits.callback(interrupts.defer)  # a second Ctrl-C does not stop the end
            begin(there.fleet, campaign.seed, lane)
            fight(campaign, there, faults, lane, seconds=seconds, documents=documents, say=say)
    except Interrupted:
        campaign.interrupted = True
    finally:
        say("everything that was started has ended")
        if temporary and campaign.broken:
            say(f"logs of the fleet are kept in {place / 'logs'}")
        elif temporary:
            shutil.rmtree(place, ignore_errors=True)


def _show(campaign: Campaign, say: Callable[[str], None], *, as_json: bool) -> None:
    """Print the table, where there is one."""
    from penstock_cli.chaos.campaign import HEADINGS
    from penstock_cli.show.terminal import aligned

    if not campaign.rows():
        return
    if as_json:
        typer.echo(campaign.as_json())
    else:
        say("")
        say("\n".join(aligned(HEADINGS, campaign.rows())))
        say("")


def _conclude(campaign: Campaign, say: Callable[[str], None], *, as_json: bool) -> None:
    """Leave with the status of what was found."""
    from penstock_cli.errors import Interrupted, PromiseBroken

    if campaign.broken:
        names = ",".join(dict.fromkeys(name for one in campaign.broken for name in one.faults))
        raise PromiseBroken(
            f"{len(campaign.broken)} of {len(campaign.verdicts)} jobs broke a promise; again: "
            f"penstock chaos {campaign.words} --faults {names}"
        )
    if campaign.interrupted:
        tried = len(campaign.verdicts)
        raise Interrupted(f"interrupted: {tried} jobs had ended, and every promise held")
    if not as_json:
        say(f"{len(campaign.verdicts)} jobs, every promise held (--seed {campaign.seed})")

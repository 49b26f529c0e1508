"""`penstock limits`: the quotas in Redis, their use, and what keeps requests from starting."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.errors import RedisNotRunning, UsageProblem
from penstock_cli.job import options

if TYPE_CHECKING:
    import redis
    from rich.console import Console

    from penstock_cli.show.quota import QuotaSeen
    from penstock_ratelimit.for_penstock import QuotaView

SAMPLE_S = 2.0
"""Between the two looks of a command that shows once: start times are given a second ahead, so a
shorter span would waver."""
WATCH_EVERY_S = 1.0
LINES_EVERY_S = 5.0
SPAN_S = 5.0
"""Use is shown over the last seconds, for the same reason."""
NOT_YET = "no quotas yet: each appears with its first request"


def limits(
    quota: Annotated[
        str | None,
        typer.Argument(metavar="[QUOTA]", help="Show only this quota: a provider's name."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow until Ctrl-C.")] = False,
    as_json: options.JsonOption = False,
    lift: Annotated[
        str | None,
        typer.Option(
            metavar="QUOTA", help="End the hold of a quota, after its account was corrected."
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="The prefix of the limiter's keys in Redis, where it sets another.")
    ] = "penstock:",
    state: options.StateOption = None,
) -> None:
    """Show how the providers' limits are used, and what keeps requests from starting."""
    with _client(state) as client:
        if lift is not None:
            typer.echo(_lift(client, lift, prefix))
            return
        reader = Reader(client, quota, prefix, _option(state, prefix))
        if as_json:
            _print_json(reader, watch=watch)
        elif watch:
            _watch(reader)
        else:
            _print_once(reader)


class Reader:
    """Looks at the quotas again and again, and remembers the last seconds."""

    def __init__(self, client: redis.Redis, quota: str | None, prefix: str, option: str) -> None:
        self._client, self._prefix, self._option = client, prefix, option
        self.quota = quota
        self._seen: deque[dict[str, QuotaView]] = deque()

    def look(self) -> list[QuotaSeen]:
        """Return the quotas as they are now.

        Raises UsageProblem when the one quota that was asked for is not there.
        """
        from penstock_cli.show.quota import LEARNED_SHOWN, QuotaSeen, lift_command
        from penstock_ledger import CauseBook
        from penstock_ratelimit.for_penstock import MAX_LEARNED, read_quotas

        views = read_quotas(
            self._client, self._prefix, None if self.quota is None else [self.quota]
        )
        if self.quota is not None and not views:
            raise _unknown(self._client, self.quota, self._prefix)
        before = self._remember(views)
        book = CauseBook(self._client)
        shown = LEARNED_SHOWN if self.quota is None else MAX_LEARNED
        return [
            QuotaSeen(
                view,
                view.since(before[view.quota_id]) if view.quota_id in before else None,
                lift_command(view.quota_id, self._option),
                shown,
                book.of(view.quota_id),
            )
            for view in views
        ]

    def sample(self) -> list[QuotaSeen]:
        """Look twice, so that there is something to say about use."""
        if self.look():
            time.sleep(SAMPLE_S)
        return self.look()

    def _remember(self, views: list[QuotaView]) -> dict[str, QuotaView]:
        """Return the oldest look that is not older than the span shown; empty for the first one."""
        now = {view.quota_id: view for view in views}
        at = max((view.at for view in views), default=0.0)
        while len(self._seen) > 1 and any(at - view.at > SPAN_S for view in self._seen[0].values()):
            self._seen.popleft()
        self._seen.append(now)
        return self._seen[0] if len(self._seen) > 1 else {}


def _print_once(reader: Reader) -> None:
    from penstock_cli.show.quota import panels
    from penstock_cli.show.terminal import console as make_console

    looks, console = reader.sample(), make_console()
    if not looks:
        console.print(NOT_YET)
    elif console.is_terminal:
        console.print(panels(looks))
    else:
        _print_lines(console, looks)


def _print_lines(console: Console, looks: list[QuotaSeen]) -> None:
    from penstock_cli.show.quota import lines

    for look in looks:
        for line in lines(look):
            console.print(line, soft_wrap=True)


def _print_json(reader: Reader, *, watch: bool) -> None:
    import orjson

    from penstock_cli.show.quota import as_json

    while True:
        for look in reader.sample():
            typer.echo(orjson.dumps(as_json(look)).decode())
        if not watch:
            return


def _watch(reader: Reader) -> None:
    from penstock_cli.show.terminal import console as make_console

    console = make_console()
    try:
        if console.is_terminal:
            _watch_panels(reader, console)
        while True:
            _print_lines(console, reader.sample())
            time.sleep(LINES_EVERY_S - SAMPLE_S)
    except KeyboardInterrupt:
        return  # there is no other end, so it is no failure


def _watch_panels(reader: Reader, console: Console) -> None:
    import redis
    from rich.live import Live
    from rich.text import Text

    from penstock_cli.show.quota import panels

    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                looks = reader.look()
                live.update(panels(looks) if looks else Text(NOT_YET), refresh=True)
            except redis.ConnectionError as error:
                live.update(
                    Text(f"no Redis answers ({error}); trying again", style="yellow"), refresh=True
                )
            time.sleep(WATCH_EVERY_S)


def _lift(client: redis.Redis, quota: str, prefix: str) -> str:
    from penstock_producer.reporting.text import one_line
    from penstock_ratelimit.for_penstock import lift_hold, read_quotas

    views = read_quotas(client, prefix, [quota])
    if not views:
        raise _unknown(client, quota, prefix)
    lifted = lift_hold(client, quota, prefix=prefix)
    if lifted:
        return (
            f"{quota} is lifted (it was held: {one_line(views[0].hold, 200)}); requests start "
            "again, and a job that paused because of it goes on with `penstock resume JOB`"
        )
    return f"{quota}: its pause is over" if views[0].pause_left_s > 0 else f"{quota} was not held"


def _unknown(client: redis.Redis, quota: str, prefix: str) -> UsageProblem:
    from penstock_producer.reporting.text import one_line
    from penstock_ratelimit.for_penstock import read_quotas

    known = ", ".join(view.quota_id for view in read_quotas(client, prefix)) or "none yet"
    return UsageProblem(f"there is no quota {one_line(quota)!r} in Redis (there are: {known})")


def _client(state: Path | None) -> redis.Redis:
    """Return the private Redis of a local run, or the configured one.

    Needs no database. Raises RedisNotRunning."""
    from penstock_cli.connect import refuse_without_redis
    from penstock_ledger import RedisAddress
    from penstock_producer.settings import ProducerSettings

    if state is None:
        settings = ProducerSettings.load()
        client = RedisAddress.parse(settings.redis_url).connect()
        refuse_without_redis(client, settings)
        return client
    from penstock_cli.redis_server import EmbeddedRedis
    from penstock_cli.state import StateFolder

    folder = StateFolder.existing(state)
    running = EmbeddedRedis.find(folder.redis)
    if running is None:
        raise RedisNotRunning(
            f"the private Redis of {folder.root} is not running; `penstock run` on the same state "
            "starts it"
        )
    return RedisAddress.parse(running.endpoint.redis_url).connect()


def _option(state: Path | None, prefix: str) -> str:
    """Return what a command that we print has to repeat of this one."""
    import shlex

    parts = ["", "--state", str(state.expanduser().absolute())] if state is not None else [""]
    parts += ["--prefix", prefix] if prefix != "penstock:" else []
    return " ".join(shlex.quote(part) if part else part for part in parts)

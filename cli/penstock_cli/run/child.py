"""A `penstock run` whose caller is a program: `penstock.run` in a notebook or a script.

The request comes as one line of JSON on standard input, which then stays open for as long as the
caller lives. What happens goes to standard output, one JSON object a line, each with one of

``note`` (what is waited for, null: nothing), ``say`` (a line that stays), ``job`` (the key of a
sample's own job), ``figures`` (how far the job is), ``concluded`` (the report, and what else is to
be said), and as the last one ``error`` (``kind`` and ``message``) where the run failed.

SIGINT and SIGTERM stop it as they stop `penstock run`. It does so by itself when its caller is
gone, however that ended: standard input ends then, or another process has become its parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import json
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, cast

from penstock_cli.entry import NEW_OBJECTS
from penstock_cli.errors import EXIT_INTERRUPTED, CliError, Interrupted, JobStopped
from penstock_cli.failures import exit_status, message
from penstock_cli.processes.signals import ORPHAN_DRAIN_S, WATCH_INTERVAL_S
from penstock_cli.processes.standby import Standby
from penstock_cli.show.terminal import PIPE_WIDTH, Repetition
from penstock_ledger.errors import EXIT_USAGE, PenstockError
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.job.given import GivenJob
    from penstock_cli.job.options import ProviderFlags
    from penstock_cli.run.conclude import Conclusion
    from penstock_cli.run.request import RunRequest
    from penstock_cli.show.figures import JobFigures
    from penstock_ledger.texts import SetOption

__all__ = ["given_by", "in_arguments"]

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


def main() -> None:
    """Run what standard input asks for, and leave with the status of `penstock run`."""
    gc.set_threshold(NEW_OBJECTS)
    events = Events()
    try:
        asked = json.loads(_first_line())
        threading.Thread(target=_end_with_caller, args=(int(asked["caller"]),), daemon=True).start()
        status = _run(asked, events)
    except BaseException as error:
        status = exit_status(error)
        if isinstance(error, KeyboardInterrupt | Interrupted):
            status = EXIT_INTERRUPTED
        else:
            events.put(error={"kind": _kind(error, status), "message": in_arguments(error)})
    sys.exit(status)


def _first_line() -> bytes:
    """Read the request without a buffer, which would keep what is waited for afterwards."""
    line = bytearray()
    while not line.endswith(b"\n") and (read := os.read(_STDIN, 65_536)):
        line += read
    return bytes(line)


def _run(asked: Mapping[str, Any], events: Events) -> int:
    request = _request(asked)
    from penstock_cli.run.request import standby_lanes

    # first of all: its imports take as long as all of this process's
    lanes = standby_lanes(request.given.lanes)
    with Standby(*lanes, wanted=not request.is_completed()) as standby:
        from penstock_cli.run.local import run_local

        status = run_local(request, standby, Caller(events))
    if request.sample is not None:
        from penstock_cli.run.extrapolated import of_sample

        for line in of_sample(request):
            events.put(say=line)
    return status


def _request(asked: Mapping[str, Any]) -> RunRequest:
    """Return the request as `penstock run` makes it of its flags."""
    from penstock_cli.run.request import RunRequest, workers_asked

    given, provider = given_by(asked["source"], asked["options"], asked["provider"])
    return RunRequest(
        out=asked["folder"],
        state=Path(asked["state"]),
        job_key=asked["job"],
        given=given,
        provider=provider,
        workers=workers_asked(given.lanes, asked["workers"], asked["gpus"]),
        gpus=asked["gpus"],
        concurrency=asked["concurrency"],
        panel=False,
        # an earlier run of the job may still be ending, as after a restart of the kernel
        waits=True,
        sample=asked["sample"],
        again=SameCall(),
    )


def given_by(
    source: str, options: Mapping[str, Any], provider: Mapping[str, Any]
) -> tuple[GivenJob, ProviderFlags]:
    """Return the job and the provider's flags that keyword arguments are."""
    from penstock_cli.job.given import GivenJob
    from penstock_cli.job.options import ProviderFlags

    flags = ProviderFlags(**provider)
    fields = {field: options.get(field) for field in OPTIONS}
    return GivenJob(source, fields, None, frozenset(options), True).for_api(flags.api), flags


class SameCall(Repetition):
    """A repetition of a call: with the same arguments, or with others of some."""

    def unchanged(self) -> str:
        return "the same call (run the cell again)"

    def option(self, action: SetOption) -> str:
        return f"{action.field}={action.value!r}"

    def later(self) -> str:
        return self.unchanged()

    def changed(self, **values: str) -> str:
        # another folder is not asked for: options that make another job have one of their own
        told = [f"{name}={value}" for name, value in values.items() if name != "out"]
        return f"the same call with {', '.join(told)}"


def _kind(error: BaseException, status: int) -> str:
    if isinstance(error, JobStopped):
        return "stopped"
    return "usage" if status == EXIT_USAGE else "failed"


def in_arguments(error: BaseException) -> str:
    """Return the message of an error in the words of keyword arguments."""
    from penstock_ledger.redaction import redact

    of_all_surfaces = isinstance(error, PenstockError) and not isinstance(error, CliError)
    return redact(str(error) if of_all_surfaces else as_arguments(message(error)))


_PARAM: Final = re.compile(r"--param (\w+)")
_FLAG: Final = re.compile(r"--([a-z][a-z0-9-]*)")
_QUOTED: Final = re.compile(r"('[^'\n]*'|\"[^\"\n]*\")")
_ARGUMENTS: Final = {
    **{name.replace("_", "-"): name for name in RUN_OPTIONS},
    "out": "state",  # a call has one folder for both
    "job": "job",
    **{option.name: option.field for option in OPTIONS.values()},
}


def as_arguments(text: str) -> str:
    """Return what a terminal shows with keyword arguments in the place of flags.

    What is quoted is a user's own, and stays.
    """
    parts = _QUOTED.split(text)
    return "".join(part if at % 2 else _unflagged(part) for at, part in enumerate(parts))


def _unflagged(text: str) -> str:
    named = _PARAM.sub(r"params.\1", text)
    named = _FLAG.sub(lambda flag: _ARGUMENTS.get(flag[1], flag[0]), named)
    return named.replace("`penstock run`", "`penstock.run`")


def _end_with_caller(caller: int) -> None:
    """Stop this process once its caller is gone: in an orderly way, then in a hurry, then at once.

    A process that the caller has forked may hold the other end of standard input open, so the
    parent is looked at as well.
    """
    watched = [_STDIN]
    while os.getppid() == caller:
        if select.select(watched, [], [], WATCH_INTERVAL_S)[0] and not os.read(_STDIN, 4096):
            break
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        os.kill(os.getpid(), number)
        time.sleep(ORPHAN_DRAIN_S)


class Events:
    """The lines written to the caller. All else that is printed in this process goes to its log."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(_STDOUT), "wb")
        os.dup2(_STDERR, _STDOUT)

    def put(self, **event: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # standard input says the same
            self._out.write(json.dumps(event).encode() + b"\n")
            self._out.flush()


class Caller:
    """The program that follows a run: gets all that a terminal would show, as events."""

    def __init__(self, events: Events) -> None:
        from rich.console import Console

        self._events = events
        self.console: Console = Console(
            file=cast(IO[str], _Said(events)), highlight=False, markup=False, width=PIPE_WIDTH
        )

    def progress(self, request: RunRequest) -> EventProgress:
        return EventProgress(self._events)

    def sampled(self, request: RunRequest) -> None:
        self._events.put(job=request.job_key)

    def concluded(self, ended: Conclusion) -> None:
        report = ended.report.to_json()
        self._events.put(
            concluded={
                "report": report,
                "said": [as_arguments(line) for line in (*ended.report.advice, *ended.said)],
            }
        )


class _Said(io.TextIOBase):
    """A file whose lines become events."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._events.put(say=as_arguments(line))
        return len(text)


class EventProgress:
    """Figures, notes and lines as events."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._noted: tuple[str | None, str] = (None, "")

    def show(self, figures: JobFigures) -> None:
        shown = {
            one.name: getattr(figures, one.name)
            for one in dataclasses.fields(figures)
            if one.name not in ("engines", "retried_by_reason")
        }
        self._events.put(figures={**shown, "seconds_left": figures.seconds_left})

    def note(self, text: str | None, more: str = "") -> None:
        if (text, more) != self._noted:
            self._noted = (text, more)
            self._events.put(note=None if text is None else as_arguments(f"{text} {more}".rstrip()))

    def hint(self, text: str) -> None:
        pass

    def say(self, message: str) -> None:
        self._events.put(say=as_arguments(message))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


if __name__ == "__main__":
    main()

"""What the screen says before there are figures, while something is waited for, and below the
panel."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from penstock_cli.commands import jobs
from penstock_cli.disk import ENOUGH_BYTES, LOW_BYTES, DiskGuard, is_full, is_held
from penstock_cli.run.services import Services
from penstock_cli.show.figures import JobFigures
from penstock_cli.show.progress import HURRIES, NOTE_EVERY_S, RESUMES, Lines, Panel, for_console
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import By, Code, Reason, by_hand, read_reason


def terminal() -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=True, highlight=False, markup=False)


def shown(console: Console, panel: Panel) -> str:
    with console.capture() as capture:
        console.print(panel._render())
    return capture.get()


def test_the_panel_is_there_from_the_first_second() -> None:
    """Before there are figures the panel says which step goes on and for how long, without a call
    of the program (D19)."""
    console = terminal()
    panel = Panel(console, "reviews")
    panel.note("reading reviews.jsonl:", "5,000 rows")
    text = shown(console, panel)
    assert "reading reviews.jsonl: 5,000 rows" in text
    assert "since the start" in text
    assert RESUMES in text
    with panel:
        assert panel._live.auto_refresh, "a thread draws it while the program is busy"


def test_a_note_stands_below_the_figures_until_the_next_one() -> None:
    """What a drain or a full disk waits for is shown with the figures, and leaves when it is over
    (D10, D20)."""
    console = terminal()
    panel = Panel(console, "reviews")
    panel.show(JobFigures(100, succeeded=40))
    panel.note("stopping:", "12 calls in flight may finish, 30 s at most.")
    assert "40 of 100" in shown(console, panel)
    assert "12 calls in flight may finish, 30 s at most." in shown(console, panel)
    panel.note(None)
    assert "in flight may finish" not in shown(console, panel)


def test_below_the_panel_stands_what_the_next_ctrl_c_does() -> None:
    """After the first Ctrl-C the panel no longer offers what was done already (D20)."""
    console = terminal()
    progress = Panel(console, "reviews")
    services = Services.__new__(Services)
    vars(services).update(
        _looked_at=float("-inf"), _progress=progress, _asked_to_stop=lambda: False
    )
    services._draining(30.0)
    assert RESUMES in shown(console, progress), "the end of a job is no interrupt"
    vars(services).update(_asked_to_stop=lambda: True, _calls_held=lambda: 3, _no_room=lambda: "")
    services._draining(30.0)
    text = shown(console, progress)
    assert (
        "nothing new is asked, and 3 documents with the workers may still be answered"
        in " ".join(text.replace("│", " ").split())
    )
    assert HURRIES in text
    assert RESUMES not in text


def test_lines_say_a_note_once_and_again_after_a_while() -> None:
    """A log gets each note once, and how a long wait goes only now and then (D10)."""
    now, out = [0.0], io.StringIO()
    lines = Lines(Console(file=out, width=200), clock=lambda: now[0])
    for second in range(int(2 * NOTE_EVERY_S) + 1):
        now[0] = float(second)
        lines.note("the disk is nearly full.", f"{second} MB are left.")
    assert len(out.getvalue().splitlines()) == 3
    lines.note(None)
    lines.note("starting workers")
    lines.note("starting workers")
    assert out.getvalue().splitlines()[3:] == ["starting workers"]


def test_watching_a_job_does_not_say_that_ctrl_c_stops_it() -> None:
    """`status --watch` says below its panel that the job goes on (D18)."""
    console = terminal()
    panel = for_console(console, "reviews", panel=True, hint=jobs.WATCH_HINT)
    assert isinstance(panel, Panel)
    text = shown(console, panel)
    assert "the job goes on" in text
    assert RESUMES not in text


class Held:
    """A job that a guard holds, on disks whose free bytes the test sets."""

    def __init__(self) -> None:
        self.free: dict[str, int | None] = {"out": 10 * ENOUGH_BYTES, "state": 10 * ENOUGH_BYTES}
        self.reasons: list[Reason] = []
        self.held = False
        self.can_write = True
        self.guard = DiskGuard(
            [Path("out"), Path("state")],
            hold=self.hold,
            go_on=self.go_on,
            free=lambda path: self.free[path.name],
        )

    def hold(self, why: Reason) -> bool:
        self.held = self.can_write
        self.reasons.append(why)
        return self.held

    def go_on(self) -> bool:
        self.held = not self.can_write
        return self.can_write


def test_a_job_waits_for_space_before_the_disk_is_full() -> None:
    """Below a named limit no new call starts, the screen names place and bytes, and above another
    the job goes on (A10)."""
    job = Held()
    assert job.guard.look() is None
    job.free["state"] = LOW_BYTES - 1
    waits = job.guard.look()
    assert waits is not None
    assert "the disk of state is nearly full" in waits.why
    assert "33.6 MB are left" in waits.more
    assert job.held
    assert job.reasons[0].code == Code.DISK_FULL
    job.free["state"] = ENOUGH_BYTES - 1
    assert job.guard.look() is not None, "a little more would be held again at once"
    job.free["state"] = None
    assert job.guard.look() is None, "a system that does not say how much is free is not waited for"
    assert not job.held


def test_a_disk_that_is_full_at_once_is_waited_for_all_the_same() -> None:
    """Where the hold itself has no room, the screen says the same, and the hold is tried again
    (A10)."""
    job = Held()
    job.free["out"], job.can_write = 0, False
    for _ in range(2):
        waits = job.guard.look()
        assert waits is not None
        assert "0.0 MB are left" in waits.more
    assert len(job.reasons) == 2
    job.can_write = True
    job.guard.look()
    assert job.guard.holds


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(28, "No space left on device"), True),
        (OSError(27, "File too large"), True),
        (OSError(2, "No such file"), False),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full"), True),
        (RuntimeError("MISCONF Errors writing to the AOF file: No space left on device"), True),
        (RuntimeError("database is locked"), False),
    ],
)
def test_a_full_disk_is_known_by_each_of_its_errors(error: Exception, full: bool) -> None:
    """The operating system, SQLite and Redis each say it in their own words (A10)."""
    assert is_full(error) is full


def test_only_a_job_that_waits_for_room_goes_on_when_there_is_some() -> None:
    """A person may have paused it meanwhile, with any words."""
    full = "disk_full: the disk of the server has 1.0 MB left"

    def paused(why: Reason | None) -> Job:
        return Job("j", "j", {}, {}, "", JobState.PAUSED, full, 1, 10, 0.0, None, why=why)

    assert is_held(paused(Reason(Code.DISK_FULL, By.CONTROL, {"place": "x", "free_bytes": 1})))
    assert is_held(paused(read_reason(None, full))), "a row of a release before"
    assert not is_held(paused(by_hand(full)))
    assert not is_held(paused(None))

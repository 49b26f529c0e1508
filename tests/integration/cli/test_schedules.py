"""`penstock schedule`, as typed, and a control loop over a real Redis that starts what was
added."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from servers import RedisServer
from sqlalchemy import update
from typer.testing import CliRunner

from penstock_cli.failures import message
from penstock_cli.main import command_line
from penstock_ledger import Database, Meta, RedisLedger, open_database
from penstock_ledger.sql.tables import schedules
from penstock_workers.control.loop import Control
from penstock_workers.settings import WorkerSettings

ADD = (
    "schedule",
    "add",
    "0 1 * * *",
    "tickets.jsonl",
    "--prompt",
    "Sum up: {text}",
    "--model",
    "m",
)


class Terminal:
    """A person at a fleet's terminal, beside one control loop that is turned by hand."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.folder = folder
        self.settings = WorkerSettings(
            redis_url=server.url, database_url=f"sqlite:///{folder}/ledger.db"
        )
        self.database: Database = open_database(self.settings.database_url)
        self.database.migrate()
        self._hot = RedisLedger(server.client(), Meta(self.database).epoch())

    def type(self, *words: str, status: int = 0) -> str:
        answer = CliRunner().invoke(command_line(), words)
        if answer.exception is not None and not isinstance(answer.exception, SystemExit):
            return f"{type(answer.exception).__name__}: {message(answer.exception)}"
        assert answer.exit_code == status, answer.output
        return " ".join(answer.output.split())

    def let_its_time_come(self, minutes_ago: int = 1) -> None:
        """As if the schedule had been added before."""
        due = (time.time() // 60 - minutes_ago) * 60
        self.database.write(
            lambda connection: connection.execute(update(schedules).values(next_at=due))
        )

    def turn_control(self) -> None:
        control = Control(self.settings, self.database, self._hot, owner="control-1")
        control.tick()
        for thread in threading.enumerate():
            if thread.name == "schedule-start":
                thread.join(30)
        control.tick()


@pytest.fixture
def terminal(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_REDIS_URL", redis_server.url)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("COLUMNS", "250")
    return Terminal(redis_server, tmp_path)


def test_a_schedule_is_added_and_fires(terminal: Terminal) -> None:
    """One command; when its time comes the control loop starts the job, which list, status and JSON
    show."""
    (terminal.folder / "tickets.jsonl").write_text('{"id": 1, "text": "hello"}\n')
    added = terminal.type(*ADD, "--timezone", "Europe/Berlin")
    assert added.startswith("tickets starts at ")
    assert added.endswith("and then by 0 1 * * * Europe/Berlin")
    assert "not started yet" in terminal.type("schedule", "list")
    terminal.let_its_time_come()
    terminal.turn_control()
    listed = terminal.type("schedule", "list")
    job_id = next(word for word in listed.split() if word.startswith("job_"))
    assert f"started {job_id} (running)" in listed
    assert "started by schedule tickets for 20" in terminal.type("status", job_id)
    assert (
        json.loads(terminal.type("status", job_id, "--json"))["started_by"]["schedule"] == "tickets"
    )
    shown = json.loads(terminal.type("schedule", "list", "tickets", "--json"))
    assert (shown["firings"][0]["job_id"], shown["spec"]["model"]) == (job_id, "m")
    assert shown["source"] == {"source": str(terminal.folder / "tickets.jsonl")}


def test_a_schedule_is_added_by_a_job_spec_file(terminal: Terminal) -> None:
    """The file says source and spec, a flag overrides it, and the source counts from the file's own
    folder."""
    (terminal.folder / "jobs").mkdir()
    (terminal.folder / "jobs/tickets.jsonl").write_text('{"id": 1, "text": "hello"}\n')
    (terminal.folder / "jobs/nightly.yaml").write_text(
        'source: tickets.jsonl\nprompt: "Sum up: {text}"\nmodel: small\nmax_attempts: 3\n'
    )
    added = terminal.type(
        "schedule", "add", "0 1 * * *", "jobs/nightly.yaml", "--name", "nightly", "--model", "big"
    )
    assert added.startswith("nightly starts at ")
    shown = json.loads(terminal.type("schedule", "list", "nightly", "--json"))
    assert (shown["spec"]["model"], shown["spec"]["max_attempts"]) == ("big", 3)
    assert shown["source"] == {"source": str(terminal.folder / "jobs/tickets.jsonl")}
    terminal.let_its_time_come()
    terminal.turn_control()
    shown = json.loads(terminal.type("schedule", "list", "nightly", "--json"))
    assert (shown["firings"][0]["outcome"], bool(shown["firings"][0]["job_id"])) == (
        "started",
        True,
    )


def test_a_watched_folder_is_added_and_shown(terminal: Terminal) -> None:
    """Typed without its whole path: the list says what is watched, and that nothing new was
    there."""
    (terminal.folder / "in").mkdir()
    added = terminal.type(
        "schedule", "add", "0 1 * * *", "in/", "--new-files", "--prompt", "{text}", "--model", "m"
    )
    assert added.startswith("in starts at ")
    terminal.let_its_time_come()
    terminal.turn_control()
    listed = terminal.type("schedule", "list", "in")
    assert f"source: new files of {terminal.folder}/in/" in listed
    assert "nothing_new: no new file" in listed


def test_a_source_that_is_not_there_is_shown(terminal: Terminal) -> None:
    """The schedule says what it waits for, in the list of all and alone."""
    terminal.type(*ADD)
    terminal.let_its_time_come()
    terminal.turn_control()
    for words in (("schedule", "list"), ("schedule", "list", "tickets")):
        assert "waits: try 1 of 5: source_unavailable" in terminal.type(*words)


def test_a_folder_is_read_when_its_time_comes(terminal: Terminal) -> None:
    """A folder stays a folder: its name keeps the slash that says so."""
    (terminal.folder / "notes").mkdir()
    (terminal.folder / "notes" / "one.md").write_text("hello")
    added = terminal.type(
        "schedule", "add", "0 1 * * *", "notes/", "--prompt", "Sum up: {text}", "--model", "m"
    )
    assert added.endswith("and then by 0 1 * * * UTC")
    terminal.let_its_time_come()
    terminal.turn_control()
    listed = terminal.type("schedule", "list", "notes")
    assert f"source: {terminal.folder}/notes/" in listed
    assert " started job_" in listed


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (None, "source_unavailable"),
        ("", "holds no document"),
        ('{"id": 1, "txt": "hello"}\n', "did you mean 'txt'"),
        ('{"id": 1, "text": "hello"}\n', None),
    ],
)
def test_a_source_that_could_not_be_used_now_is_said_when_it_is_added(
    terminal: Terminal, line: str | None, says: str | None
) -> None:
    """The schedule is added, since the source may be there later; what its job would fail with now
    is shown at once."""
    if line is not None:
        (terminal.folder / "tickets.jsonl").write_text(line)
    added = terminal.type(*ADD)
    assert added.startswith("tickets starts at ")
    assert ("could not be used" in added) == (says is not None)
    assert says is None or says in added
    assert "not started yet" in terminal.type("schedule", "list")


def test_a_schedule_is_paused_resumed_and_removed(terminal: Terminal) -> None:
    """Each says what it has done; a second time says that it was so already."""
    terminal.type(*ADD, "--name", "night")
    assert terminal.type("schedule", "pause", "night") == "night is paused"
    assert terminal.type("schedule", "pause", "night") == "night was paused already"
    assert " paused " in terminal.type("schedule", "list")
    terminal.let_its_time_come()
    terminal.turn_control()
    assert terminal.type("schedule", "resume", "night").startswith("night starts next at ")
    assert terminal.type("schedule", "resume", "night").startswith(
        "night was not paused; it starts at "
    )
    assert terminal.type("schedule", "remove", "night") == "night is removed"
    assert "no schedules yet" in terminal.type("schedule", "list")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--timezone", "Mars"), "time zone 'Mars'"),
        (("--catch-up", "some"), "skip, once, all"),
        (("--name", "job_1"), "the name 'job_1' is refused"),
        (("--max-attempts", "0"), "--max-attempts"),
        (("--job", "tonight"), "name the schedule with --name, and each job has the key NAME@TIME"),
        (("--from-job", "first"), "give a SOURCE, or --from-job JOB or --from-schedule NAME"),
        (("--where", "status=dead"), "give a SOURCE, or --from-job JOB or --from-schedule NAME"),
        (("--new-files", "--events", "hello"), "is no folder that new files can come to"),
        (("--events", "webhook"), "events name new files; give --new-files"),
    ],
)
def test_what_cannot_be_used_is_said_in_the_words_of_the_flags(
    terminal: Terminal, more: tuple[str, ...], says: str
) -> None:
    """Nothing is added then."""
    assert says in terminal.type(*ADD, *more)
    assert "no schedules yet" in terminal.type("schedule", "list")


def test_a_schedule_over_outcomes_is_added_and_shown(terminal: Terminal) -> None:
    """It needs a name of its own; the list says whose outcomes it reads, and what it waits for."""
    over = (
        "schedule",
        "add",
        "0 4 * * *",
        "--from-schedule",
        "tickets",
        "--where",
        "status=dead",
        "--model",
        "large",
    )
    assert "no schedule has the name 'tickets'" in terminal.type(*over, "--name", "again")
    terminal.type(*ADD)
    assert "name the schedule: --name NAME" in terminal.type(*over)
    assert terminal.type(*over, "--name", "again").startswith("again starts at ")
    (terminal.folder / "tickets.jsonl").write_text('{"id": 1, "text": "hello"}\n')
    terminal.let_its_time_come()
    for _ in range(2):
        terminal.turn_control()
    listed = terminal.type("schedule", "list", "again")
    assert "source: outcomes of the newest job of schedule tickets, where status=dead" in listed
    assert "waits: job tickets@" in listed or "has started no job yet" in listed


def test_two_schedules_have_two_names(terminal: Terminal) -> None:
    """The second one is refused with the way out, and the first stays as it was."""
    terminal.type(*ADD)
    assert "remove it first" in terminal.type(*ADD, "--timezone", "Asia/Tokyo")
    assert "UTC" in terminal.type("schedule", "list")

"""Commands for a fleet when none is configured, or when a local run was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from penstock_cli.errors import UsageProblem
from penstock_cli.failures import message
from penstock_cli.main import command_line
from penstock_ledger import SchemaMissing


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder without any setting."""
    for name in ("CONFIG", "DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def local_run(folder: Path, name: str) -> None:
    """What a local run leaves, as far as it is looked for."""
    state = folder / name / ".penstock"
    state.mkdir(parents=True)
    (state / "penstock.db").touch()


def refused(*arguments: str) -> str:
    error = CliRunner().invoke(command_line(), list(arguments)).exception
    assert isinstance(error, UsageProblem), error
    return str(error)


@pytest.mark.parametrize(
    "command", [("status", "x"), ("jobs",), ("results", "x", "-o", "f"), ("cancel", "x")]
)
def test_nothing_is_configured(empty: Path, command: tuple[str, ...]) -> None:
    """A look without settings says what to set, and makes no database (D7)."""
    told = refused(*command)
    assert "nothing is configured" in told
    assert "PENSTOCK_DATABASE_URL" in told
    assert list(empty.iterdir()) == []


def test_limits_without_settings_say_what_to_set(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error number of a socket: where nothing is configured, it is Redis that is to be named."""
    local_run(empty, "out")

    def refuse(_client: redis.Redis) -> None:
        raise redis.ConnectionError("Error 111 connecting to localhost:6379. Connection refused.")

    monkeypatch.setattr(redis.Redis, "ping", refuse)
    told = refused("limits")
    assert "nothing is configured" in told
    assert "PENSTOCK_REDIS_URL" in told
    assert "--state out/.penstock" in told


def test_no_job_goes_where_no_fleet_looks(empty: Path) -> None:
    """Without settings `submit` refuses instead of filling a private file (D7)."""
    (empty / "docs.jsonl").write_text('{"id": "a", "text": "x"}\n')
    told = refused("submit", "docs.jsonl", "--model", "m", "--prompt", "{text}")
    assert "nothing is configured" in told
    assert [path.name for path in empty.iterdir()] == ["docs.jsonl"]


def test_the_doctor_makes_no_database_and_says_what_to_set(empty: Path) -> None:
    """`doctor` with nothing configured says what to set, and a later look says so, too (D7)."""
    told = CliRunner().invoke(command_line(), ["doctor", "--no-provider"])
    assert told.exit_code == 1
    assert "bad  database    nothing is configured: set database_url" in told.output
    assert list(empty.iterdir()) == []
    assert "nothing is configured" in refused("jobs")


def test_a_database_file_that_is_not_there_is_named(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configured SQLite file that does not exist is not created by a look (D7)."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{empty}/typo.db")
    assert "typo.db, and there is no such file" in refused("jobs")
    assert list(empty.iterdir()) == []


def test_the_state_folders_nearby_are_named(empty: Path) -> None:
    """Who forgets --state after a local run is shown the folders that there are, a few of them
    (D22)."""
    local_run(empty, "out dir")
    assert "add --state 'out dir/.penstock'." in refused("status", "x")
    assert "--state 'out dir/.penstock'" in message(SchemaMissing(None, "0001"))
    for number in range(4):
        local_run(empty, f"out{number}")
    assert "(and 2 more)" in refused("jobs")

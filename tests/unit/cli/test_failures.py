"""Every failure has an exit status and one paragraph."""

from __future__ import annotations

import sys

import pytest
import redis
from typer.testing import CliRunner

from penstock_cli import main as main_module
from penstock_cli.errors import Interrupted, JobStopped, StateBusy, UsageProblem
from penstock_cli.failures import exit_status, message
from penstock_ledger.errors import DatabaseUnavailable, JobConflict, SchemaMissing
from penstock_producer.errors import SourceChanged, UnknownMessageVersion
from penstock_simulate.choices import BadSetting
from penstock_workers.errors import MissingApiKey, ModelMissing


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageProblem("x"), 2),
        (StateBusy("x"), 2),
        (BadSetting("x"), 2),
        (SourceChanged("x"), 2),
        (MissingApiKey("default", "KEY"), 2),
        (JobStopped("x"), 1),
        (redis.ConnectionError("refused"), 1),
        (OSError(28, "No space left on device", "/x"), 1),
        (ZeroDivisionError("bug"), 1),
        (Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_statuses(error: BaseException, status: int) -> None:
    """2 is for the user to correct before anything starts, 130 resumes, everything else that fails
    is 1."""
    assert exit_status(error) == status


def test_messages_name_the_next_step() -> None:
    """A failure outside of us says which setting is meant; a bug says so and how to see more."""
    assert "PENSTOCK_REDIS_URL" in message(redis.ConnectionError("Error 111 connecting"))
    assert (
        message(OSError(28, "No space left on device", "/x"))
        == "the operating system says: /x No space left on device"
    )
    assert "PENSTOCK_DEBUG=1" in message(ZeroDivisionError("division by zero"))
    assert message(UnknownMessageVersion(9)).startswith("message version v=9")


def test_a_lane_without_its_model_is_bad_usage() -> None:
    """`--lane gpu` without a model exits 2, as the contract says of bad input (C4)."""
    assert exit_status(ModelMissing("gpu.model", None)) == 2
    assert (
        exit_status(JobConflict("k", "job_1")),
        exit_status(DatabaseUnavailable("db:5432/p", "refused")),
    ) == (2, 1)


def test_a_database_that_was_not_migrated_says_which_command_does_it() -> None:
    """Missing tables advise `penstock migrate`, not a Python method (D17)."""
    assert "`penstock migrate`" in message(SchemaMissing(None, "0001"))
    assert "Database.migrate" not in str(SchemaMissing(None, "0001"))


def test_a_foreign_message_that_ends_with_a_full_stop_gets_no_second_one() -> None:
    """`Connection refused..` is no sentence (D40)."""
    assert ".." not in message(
        redis.ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused.")
    )


def run_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_user_errors_come_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong state folder is one paragraph on stderr and status 2; PENSTOCK_DEBUG=1 adds the
    traceback."""
    monkeypatch.delenv("PENSTOCK_DEBUG", raising=False)
    status, told = run_main(monkeypatch, capsys, "status", "j", "--state", "/nowhere")
    assert status == 2
    assert told.startswith("penstock: --state /nowhere: no state of a local run there")
    assert "Traceback" not in told
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    assert "Traceback" in run_main(monkeypatch, capsys, "status", "j", "--state", "/nowhere")[1]


def test_a_misspelt_option_or_command_gets_a_suggestion() -> None:
    """Status 2 and the right word."""
    runner = CliRunner()
    option = runner.invoke(
        main_module.command_line(), ["run", "x.jsonl", "--out", "o", "--budget-us", "3"]
    )
    command = runner.invoke(main_module.command_line(), ["stauts"])
    assert (option.exit_code, command.exit_code) == (2, 2)
    assert "--budget-usd" in option.output
    assert "status" in command.output


@pytest.mark.parametrize(
    "name",
    [
        "run",
        "submit",
        "status",
        "jobs",
        "report",
        "results",
        "pause",
        "resume",
        "cancel",
        "dlq",
        "worker",
        "doctor",
        "simulate",
    ],
)
def test_every_command_of_the_contract_is_there(name: str) -> None:
    """Each command explains itself."""
    answer = CliRunner().invoke(main_module.command_line(), [name, "--help"])
    assert answer.exit_code == 0
    assert "Usage:" in answer.output

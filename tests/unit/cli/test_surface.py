"""What every command offers: a version, completion, examples; and what is found before anything
starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import GivenJob, check_hooks
from penstock_cli.job.jobspec import job_spec
from penstock_cli.main import command_line
from penstock_cli.show.quota import QuotaSeen, tallies, troubles
from penstock_cli.show.terminal import aligned
from penstock_ledger.model import ItemKey, Result
from penstock_producer import Producer, ProducerSettings
from penstock_ratelimit.store.messages import Breaker
from penstock_ratelimit.watch import DimensionView, QuotaView

LOOK = QuotaSeen(
    QuotaView(
        quota_id="default",
        at=0.0,
        dimensions=(),
        processes=1,
        waiting=0,
        in_flight=0,
        concurrency=None,
        concurrency_most=None,
        climbing=False,
        granted=120,
        throttled=5,
        ramps=2,
        failures=3,
        holds=0,
        margin=0.97,
        declared_margin=1.0,
        share=1.0,
        breaker=Breaker.OPEN,
        open_left_s=5.0,
        probes_won=0,
        hold="",
        held_s=0.0,
        pause_left_s=0.0,
        answered_ago_s=None,
        retry_budget=100.0,
        learned=(),
    ),
    None,
    "penstock limits --lift default",
)
COMMAND = typer.main.get_command(command_line())


def commands() -> list[list[str]]:
    found: list[list[str]] = []
    for name, command in COMMAND.commands.items():  # type: ignore[attr-defined]  # a group, as this one has commands
        below = getattr(command, "commands", None)
        found += [[name, one] for one in below] if below else [[name]]
    return found


def test_the_version_is_told() -> None:
    """`penstock --version` names the release and the Python that runs it (D35)."""
    answer = CliRunner().invoke(command_line(), ["--version"])
    assert answer.exit_code == 0
    assert answer.output.startswith("penstock ")
    assert "Python 3." in answer.output


def test_shells_can_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options to show and install completion are there, and a shell gets the names of commands
    (D35)."""
    assert "--install-completion" in CliRunner().invoke(command_line(), ["--help"]).output
    asked = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock dl", "COMP_CWORD": "1"}
    assert "dlq" in CliRunner().invoke(command_line(), [], prog_name="penstock", env=asked).output


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_an_example(command: list[str]) -> None:
    """The help of each command ends with a command to paste (D35)."""
    answer = CliRunner(env={"COLUMNS": "200"}).invoke(command_line(), [*command, "--help"])
    assert answer.exit_code == 0
    assert "penstock " + " ".join(command) in answer.output.partition("For example:")[2]


def test_a_schema_comes_from_a_file(tmp_path: Path) -> None:
    """`--response-schema FILE` puts a JSON schema into the spec (D34)."""
    path = tmp_path / "answer.json"
    path.write_text('{"type": "object"}')
    assert job_spec(GivenJob("d", {"response_schema": path})).response_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("content", "told"), [("{", "not JSON"), (None, "No such file"), ("[1]", "--response-schema")]
)
def test_a_file_without_a_schema_is_refused_by_its_flag(
    content: str | None, told: str, tmp_path: Path
) -> None:
    """What is missing or not a JSON object is named with the flag (D34)."""
    path = tmp_path / "answer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageProblem, match=told):
        job_spec(GivenJob("d", {"response_schema": path}))


def test_hooks_that_are_not_there_are_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that fails to import, ends the process or lacks the function is named; a good one
    passes (D32)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_hooks.py").write_text(
        "print('loaded')\nLIMIT = 3\ndef good(item): return item\n"
    )
    (tmp_path / "my_broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "my_deadly.py").write_text("import os\nos._exit(7)\n")
    check_hooks((None, "my_hooks:good"))
    for path, told in {
        "my_hooks:bad": "bad is not in my_hooks",
        "my_hooks:LIMIT": "LIMIT is int, not a function",
        "my_broken:f": (
            "my_broken cannot be imported (ModuleNotFoundError: No module named "
            "'nothing_of_that_name')"
        ),
        "my_deadly:f": "ended the process with status 7",
    }.items():
        with pytest.raises(UsageProblem) as caught:
            check_hooks((path, None))
        assert told in str(caught.value)


def test_a_fleet_may_have_modules_that_the_submitter_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At submit only what is plainly wrong is refused: a missing function of a module that is here
    (D32)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_hooks.py").write_text("def good(item): return item\n")
    check_hooks(("only.on.workers:f",), workers_elsewhere=True)
    with pytest.raises(UsageProblem, match="bad is not in my_hooks"):
        check_hooks(("my_hooks:bad",), workers_elsewhere=True)


def test_results_go_to_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`results -o -` prints the lines and makes no file of that name; how many there are goes to
    stderr (D28)."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Producer(ProducerSettings(database_url=url)) as producer:
        job = producer.open_job({"model": "m"}, job_key="night")
        key = ItemKey(job.job_id, 1, "a")
        producer._outcomes.settle(
            [Result(key, 200, b"{}", None, "m", "stop", 1, 1, 0, 1, 1, 1)], []
        )
    answer = CliRunner(env={"PENSTOCK_DATABASE_URL": url}).invoke(
        command_line(), ["results", "night", "-o", "-"]
    )
    assert json.loads(answer.stdout)["custom_id"] == "a"
    assert "1 results" in answer.stderr
    assert not (tmp_path / "-").exists()


def test_a_long_cell_is_whole_and_widens_no_column() -> None:
    """One id of 100 characters does not push every other row to the right (D37)."""
    lines = aligned(["id", "state"], [["a" * 100, "dead"], ["bb", "done"]])
    assert lines == ["id  state", "a" * 100 + "  dead", "bb  done"]


def test_limits_are_told_in_plain_words() -> None:
    """What `penstock limits` counts is said as requests, answers and limits, not by the names of
    our parts (D38)."""
    told = " · ".join([*tallies(LOOK), *(trouble.text for trouble in troubles(LOOK, 0.0))])
    assert (
        "120 calls started · 7 answered 429 · 3 failed at the provider · 2 of the 429s for a rise "
        "too fast"
    ) in told
    assert "of the limits" not in told, "there are none"
    limited = replace(
        LOOK,
        view=replace(
            LOOK.view, dimensions=(DimensionView("requests", 60.0, 1.0, 60.0, 0.0, 0.0, 0.0),)
        ),
    )
    assert "using 97.0% of the limits" in " · ".join(tallies(limited))
    assert "3 trial requests decide" in told
    for word in ("granted", "probe", "margin", "too steep", "somebody"):
        assert word not in told

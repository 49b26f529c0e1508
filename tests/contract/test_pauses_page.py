"""The tables of pauses in docs/production.md and of dead letters in docs/troubleshooting.md say what
the code does."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from penstock_ratelimit.shared.discovery import ABSURD, FORGET_S
from penstock_ratelimit.shared.reserving import ASK_AGAIN_S
from penstock_workers.item.failures import ASTRAY
from penstock_workers.item.outcome import Dead, Parked, Retry
from penstock_workers.item.run.fates import FATES
from penstock_workers.item.run.runs import PROVEN_WAIT_S, UNPROVEN_WAIT_S
from penstock_workers.settings import WorkerSettings

DOCS = Path(__file__).parents[2] / "docs"
PAUSES = (
    (DOCS / "production.md")
    .read_text()
    .split("## Why a job stands still")[1]
    .split("## Runbook")[0]
)
DISCOVERY = (
    (DOCS / "ratelimit.md")
    .read_text()
    .split("**What headers taught expires:**")[1]
    .split("\n\n")[0]
)


LETTERS = (
    (DOCS / "troubleshooting.md")
    .read_text()
    .split("## Why a document is a dead letter")[1]
    .split("## To ask others")[0]
)


def default(name: str) -> object:
    return WorkerSettings.model_fields[name].default


def test_every_row_has_a_cause_a_scope_an_end_and_a_command() -> None:
    """No pause is described without all four (A2)."""
    rows = [line.strip("|").split("|") for line in PAUSES.splitlines() if line.startswith("| ")]
    assert len(rows) > 8
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)


def test_the_table_of_dead_letters_has_each_reason_once() -> None:
    """A reader who meets a reason finds what it is and what to do, and which are final at once."""
    table = "".join(line.split(" | ")[0] for line in LETTERS.splitlines() if line.startswith("| "))
    final = {name for name, fate in FATES.items() if fate.outcome is Dead}
    tried = {name for name, fate in FATES.items() if fate.outcome is Retry and fate.counted}
    assert sorted(re.findall(r"\*`(\w+)`\*", table)) == sorted(final)
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(final | tried)


@pytest.mark.parametrize(
    "name",
    sorted(
        {name for name, fate in FATES.items() if fate.outcome is Parked} | ASTRAY | {"daily_limit"}
    ),
)
def test_every_failure_that_pauses_is_in_the_table(name: str) -> None:
    """Who reads a reason in `penstock status` finds it there (A3, A7)."""
    assert f"`{name}`" in PAUSES


def test_the_numbers_are_those_of_the_code() -> None:
    """Limits in prose are the constants and defaults (A2, A7, A11)."""
    assert f"{default('pause_after_run')} in a row" in PAUSES
    assert f"`max_retry_after_s` ({default('max_retry_after_s'):g} s)" in PAUSES
    assert f"within {ASK_AGAIN_S:g} s" in PAUSES
    assert f"({PROVEN_WAIT_S:g} s, or {UNPROVEN_WAIT_S:g} s in a job" in PAUSES
    assert f"for {FORGET_S:g} s is forgotten" in DISCOVERY
    assert f"{ABSURD:g} times slower" in DISCOVERY
    breaker = (files("penstock_ratelimit.store") / "scripts" / "breaker.lua").read_text()
    assert "LONGEST_OPEN_US, SHORTEST_OPEN_US = 5e6, 120e6" in breaker
    assert "LOST_IN_A_ROW = 8" in breaker
    assert "at most 120 s" in PAUSES
    assert "8 times in a row" in PAUSES

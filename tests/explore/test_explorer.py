"""Interleavings of real code that the explorer tries: a part of them here, more by
``make explore SEEDS=...``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = 60
"""A third of a second of CPU each."""
SHOWN = 5
KEPT = Path(__file__).parent / "regressions.json"


def explore(*options: str) -> tuple[int, str]:
    """Run the explorer, in a process of its own: it takes the clock and all that is random."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.explore", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def found_by(seeds: str, *options: str) -> tuple[dict[str, Any], str]:
    """Return the figures of some seeds, of which each must hold, and the histories they print."""
    status, said = explore("--seeds", seeds, "--stop-at-first-failure", "--json", *options)
    history, _, last = said.rstrip().rpartition("\n")
    figures: dict[str, Any] = json.loads(last)
    seed = figures["failed_seed"]
    assert status == 0, (
        f"{figures['invariant']}: see `python -m tests.explore --seeds {seed}:{seed}`"
    )
    return figures, history


@pytest.fixture(scope="module")
def played() -> tuple[dict[str, Any], str]:
    """The seeds of every day in one process, then those that found a fault; and one history."""
    return found_by(f"0:{SEEDS - 1}", "--kept", "--history", str(SHOWN))


def test_whatever_happens_in_between_every_promise_holds(
    played: tuple[dict[str, Any], str],
) -> None:
    """In no seed does a document have no outcome or two, is a call made again without a cause, a
    dollar unbooked, a budget passed, a batch orphaned, or work left lying; and every kind of fault
    is among what happens."""
    injected = played[0]["faults"]
    assert injected.keys() == {
        "answer lost",
        "dies",
        "dies after it",
        "dies before it",
        "freezes",
        "freezes before it",
        "hides",
        "is away",
        "Redis forgets",
        "Redis is restored",
        "Redis restarts",
        "Redis restarts empty",
        "refused",
        "steps back",
        "wrong clock",
    }


@pytest.mark.whole
def test_a_thousand_more() -> None:
    """The same of many more seeds."""
    assert found_by(f"{SEEDS}:{SEEDS + 999}")[0]["seeds"] == 1_000


@pytest.mark.whole
def test_the_same_with_postgresql_underneath() -> None:
    """A transaction is one step there as well, so this looks for what its statements do otherwise."""
    assert found_by("0:4", "--postgres")[0]["seeds"] == 5


def test_a_seed_is_one_history(played: tuple[dict[str, Any], str]) -> None:
    """Wherever it stands among others: what a seed has found can be looked at again."""
    _, alone = found_by(f"{SHOWN}:{SHOWN}", "--history")
    assert alone.count("\n") > 100
    assert alone == played[1]


def test_what_was_found_stays_mended(played: tuple[dict[str, Any], str]) -> None:
    """Seeds that found a fault are played again, with the choices that it takes where few do."""
    assert played[0]["seeds"] == SEEDS + len(json.loads(KEPT.read_text()))

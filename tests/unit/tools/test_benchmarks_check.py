"""The regression guard of the benchmarks: what it calls a miss."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import MODULES
from benchmarks.harness.check import letters, missed
from benchmarks.harness.targets import MARGIN, OF_ENGINES, TARGETS, Limit, Target, judge

ROOT = Path(__file__).parents[3]
MEASURED = {name: target.measured or 1.0 for name, target in TARGETS.items()}
HELD = [name for name, target in TARGETS.items() if target.measured is not None]


def worse(name: str, times: float) -> float:
    return (
        MEASURED[name] * times if TARGETS[name].wanted.most is not None else MEASURED[name] / times
    )


def test_what_was_measured_holds_though_a_target_may_be_missed() -> None:
    """The check does not fail because a ratio is not yet where it should get to."""
    assert missed(MEASURED) == []
    assert any(not TARGETS[name].wanted.met(MEASURED[name]) for name in HELD)


@pytest.mark.parametrize("name", HELD)
def test_a_regression_is_named_with_what_was_measured_before(name: str) -> None:
    """A little worse than before is chance; beyond the margin the line says how much, the limit and
    where that is argued."""
    target = TARGETS[name]
    assert missed(MEASURED | {name: worse(name, MARGIN - 0.01)}) == []
    ratio = worse(name, MARGIN + 0.05)
    (line,) = missed(MEASURED | {name: ratio}, [target.benchmark])
    assert line.startswith(f"{name}: {ratio:.2f}x")
    assert all(word in line for word in (str(target.held), f"{target.measured:g}x", target.argued))


def test_what_was_not_measured_is_a_miss_of_its_benchmark_only() -> None:
    """A guard that measured nothing must not pass; one of a single benchmark asks for that one's
    ratios."""
    others = [name for name, target in TARGETS.items() if target.benchmark != OF_ENGINES]
    assert [line.split(":")[0] for line in missed({})] == others
    assert len(missed({}, [OF_ENGINES])) == len(TARGETS) - len(others) > 0
    assert {line.split(":")[0] for line in missed({}, ["n"])} == {
        name for name, target in TARGETS.items() if target.benchmark == "n"
    }


def test_every_target_is_argued_where_it_says() -> None:
    """Each names a benchmark that exists, and a heading in a page that exists."""
    assert set(letters()) <= set(MODULES)
    for target in TARGETS.values():
        assert (target.wanted.most is None) != (target.wanted.least is None)
        path, _, heading = target.argued.partition(", ")
        text = (ROOT / path).read_text()
        assert not heading or re.search(
            rf"^#+ {re.escape(heading.strip(chr(39)))}", text, re.MULTILINE
        ), heading


def test_a_limit_is_a_floor_or_a_ceiling() -> None:
    """More is worse for the one and better for the other."""
    assert Limit(most=1.4).met(1.0)
    assert not Limit(most=1.4).met(2.0)
    assert Limit(least=1.7).met(2.0)
    assert not Limit(least=1.7).met(1.0)


def test_what_was_never_measured_on_a_quiet_machine_is_held_to_nothing() -> None:
    """Its target is printed, and the first figure of a quiet machine becomes its limit."""
    new = Target("n", "", Limit(least=1.7), measured=None)
    assert (str(new.held), new.held.met(0.1)) == ("", True)
    assert str(Target("n", "", Limit(least=1.7), measured=2.0).held) == ">= 1.6x"


def test_a_table_shows_both_the_target_and_the_limit() -> None:
    """A ratio between the two is not met, and held."""
    name = "whole path / bare aiohttp"
    judged = judge(name, MEASURED[name])
    assert (judged.target, judged.met, judged.held_to, judged.held) == (
        "<= 1.4x",
        False,
        "<= 2.01x",
        True,
    )
    assert judge("a figure without a target", 1.0).target == ""


def test_benchmarks_find_the_servers_that_tests_start() -> None:
    """In a process of their own, which does not have the tests' folders on its path."""
    code = (
        "from importlib import import_module\n"
        "from benchmarks.harness.ground import tests_on_path\n"
        "with tests_on_path():\n"
        "    import_module('servers')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)

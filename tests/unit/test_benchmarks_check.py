"""The regression guard of the benchmarks: what it calls a miss."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import MODULES
from benchmarks.check import letters, missed
from benchmarks.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
WITHIN = {name: target.most if target.most is not None else target.least for name, target in TARGETS.items()}


def test_ratios_at_their_limits_are_no_misses() -> None:
    """A limit itself is still allowed."""
    assert missed({name: limit for name, limit in WITHIN.items() if limit is not None}) == []


@pytest.mark.parametrize("name", TARGETS)
def test_a_ratio_beyond_its_limit_is_named_with_it(name: str) -> None:
    """The line says which ratio, how much it is, what its limit is and where that is argued."""
    target = TARGETS[name]
    beyond = target.most * 1.5 if target.most is not None else (target.least or 0.0) / 1.5
    (line,) = missed({key: value for key, value in WITHIN.items() if value is not None} | {name: beyond})
    assert line.startswith(f"{name}: {beyond:.2f}x")
    assert str(target) in line
    assert target.argued in line


def test_what_was_not_measured_is_a_miss_of_its_benchmark_only() -> None:
    """A guard that measured nothing must not pass; one of a single benchmark asks for that one's ratios."""
    assert len(missed({})) == len(TARGETS)
    assert {line.split(":")[0] for line in missed({}, ["n"])} == {
        name for name, target in TARGETS.items() if target.benchmark == "n"
    }


def test_every_target_is_argued_where_it_says() -> None:
    """Each names a benchmark that exists, and a heading in a page that exists."""
    assert set(letters()) <= set(MODULES)
    for target in TARGETS.values():
        assert (target.most is None) != (target.least is None)
        path, _, heading = target.argued.partition(", ")
        text = (ROOT / path).read_text()
        assert not heading or re.search(rf"^#+ {re.escape(heading.strip(chr(39)))}", text, re.MULTILINE), heading


def test_a_target_is_a_floor_or_a_ceiling() -> None:
    """More is worse for the one and better for the other."""
    assert Target("c", "", most=1.4).met(1.0)
    assert not Target("c", "", most=1.4).met(2.0)
    assert Target("c", "", least=1.7).met(2.0)
    assert not Target("c", "", least=1.7).met(1.0)

"""Quotas are checked when they are declared, and the window is plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from penstock_ratelimit import BadQuota, LocalLimiter, PerMinute, PerSecond, Quota
from penstock_ratelimit.rates import DEFAULT_SLOPE, Slope, Terms
from penstock_ratelimit.shared.reserving import MAX_WINDOW, Window

Limits = Mapping[str, PerMinute | PerSecond]


@pytest.mark.parametrize(
    ("declare", "names"),
    [
        (lambda: PerMinute(0), "PerMinute is 0: give a finite number of units per minute above 0"),
        (lambda: PerMinute(-5), "PerMinute is -5"),
        (lambda: PerSecond(math.nan), "PerSecond is nan"),
        (lambda: PerSecond(math.inf), "PerSecond is inf"),
        (lambda: PerMinute(True), "PerMinute is True: give a number"),
        (lambda: PerMinute("600"), "PerMinute is '600': give a number"),  # type: ignore[arg-type]  # the point
        (lambda: Quota(""), "Quota.id is ''"),
        (lambda: Quota("a{b}"), "Quota.id is 'a{b}': use 1 to 200 of letters"),
        (lambda: Quota("q", burst_s=0), "Quota.burst_s is 0"),
        (
            lambda: Quota("q", burst_s=61),
            "Quota.burst_s is 61: give a finite number of seconds above 0 and at most 60",
        ),
        (lambda: Quota("q", horizon_s=11), "Quota.horizon_s is 11"),
        (lambda: Quota("q", margin=1.1), "Quota.margin is 1.1"),
        (
            lambda: Quota("q", {"Tokens": PerMinute(1)}),
            "Quota.limits is 'Tokens': name dimensions in lower case",
        ),
        (
            lambda: Quota("q", {"tokens": 5}),  # type: ignore[dict-item]  # the point
            r"Quota.limits\['tokens'\] is 5: give "
            r"PerMinute",
        ),
        (
            lambda: Quota("q", caps={"tokens": 5}),
            "Quota.caps is 'tokens': cap only limited dimensions",
        ),
        (
            lambda: Quota("q", {"tokens": PerMinute(1)}, caps={"tokens": 0}),
            r"Quota.caps\['tokens'\] is 0",
        ),
        (
            lambda: LocalLimiter([Quota("q"), Quota("q")]),
            "Quota.id is 'q': declare each quota once",
        ),
    ],
)
def test_a_quota_that_cannot_be_says_field_value_and_fix(
    declare: Callable[[], Any], names: str
) -> None:
    """Every refused value is named with its field and what to give instead."""
    with pytest.raises(BadQuota, match=names):
        declare()


def test_a_quota_does_not_change() -> None:
    """Neither the quota nor the limits in it can be changed after it was declared."""
    limits = {"tokens": PerMinute(60)}
    quota = Quota("q", limits)
    limits["requests"] = PerMinute(60)
    assert dict(quota.limits) == {"tokens": PerMinute(60)}
    with pytest.raises(TypeError):
        quota.limits["tokens"] = PerMinute(1)  # type: ignore[index]  # the point
    with pytest.raises(FrozenInstanceError):
        quota.margin = 1.0  # type: ignore[misc]  # the point


def test_terms_are_rates_per_second_and_the_margin() -> None:
    """600 a minute is 10 a second, of which a margin of 0.9 allows 9; a request costs at most a
    minute's worth, or the cap."""
    limits: Limits = {"tokens": PerMinute(600), "requests": PerSecond(4)}
    terms = Quota("q", limits, burst_s=2, margin=0.9, caps={"requests": 1}).terms()
    rates = (4.0, 10.0)
    assert terms == Terms(
        "q", ("requests", "tokens"), rates, (8.0, 20.0), (1.0, 600.0), rates, 0.9, Slope()
    )
    assert terms.allowed == (3.6, 9.0)
    assert terms.scaled(0.5).rates == (2.0, 5.0)


@pytest.mark.parametrize("slope", [DEFAULT_SLOPE, Slope(0.1, 60.0, 30.0)])
def test_terms_come_back_from_their_text_as_they_were(slope: Slope) -> None:
    """What one process puts into Redis is what the others read, with and without dimensions."""
    both: Limits = {"tokens": PerMinute(100_000 / 3), "requests": PerSecond(4)}
    for limits in ({}, both):
        terms = Quota("q", limits, slope=slope).terms()
        assert Terms.from_json("q", terms.to_json()) == terms
        assert Terms.from_json("q", terms.to_json()).to_json() == terms.to_json()


@pytest.mark.parametrize(
    ("horizon_s", "pace_s", "processes", "size"),
    [
        (1.0, 0.025, 1, 40),
        (1.0, 0.025, 4, 10),
        (1.0, 0.025, 3, 14),
        (1.0, 0.25, 4, 1),
        (1.0, 2.5, 4, 1),
        (0.4, 0.025, 4, 4),
        (10.0, 0.025, 1, MAX_WINDOW),
        (1.0, 1e-6, 4, MAX_WINDOW),
        (1.0, 0.0, 4, 1),
        (1.0, 0.025, 0, 40),
    ],
)
def test_the_window_is_a_processes_part_of_the_horizon(
    horizon_s: float, pace_s: float, processes: int, size: int
) -> None:
    """W = ceil(horizon / pace / processes), at least one and at most 64; one until the pace is
    known."""
    window = Window(horizon_s)
    assert window.size == 1
    window.resize(pace_s, processes)
    assert (window.size, window.low_water) == (size, size // 2)

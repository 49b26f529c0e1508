"""Quotas are checked when they are declared, and the window is plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from penstock_ratelimit import BadQuota, LocalLimiter, PerMinute, PerSecond, Quota
from penstock_ratelimit.limits import Terms
from penstock_ratelimit.window import MAX_WINDOW, Window


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
        (lambda: Quota("q", burst_s=61), "Quota.burst_s is 61: give a finite number of seconds above 0 and at most 60"),
        (lambda: Quota("q", horizon_s=11), "Quota.horizon_s is 11"),
        (lambda: Quota("q", margin=1.1), "Quota.margin is 1.1"),
        (lambda: Quota("q", {"Tokens": PerMinute(1)}), "Quota.limits is 'Tokens': name dimensions in lower case"),
        (lambda: Quota("q", {"tokens": 5}), r"Quota.limits\['tokens'\] is 5: give PerMinute"),  # type: ignore[dict-item]  # the point
        (lambda: Quota("q", caps={"tokens": 5}), "Quota.caps is 'tokens': cap only limited dimensions"),
        (lambda: Quota("q", {"tokens": PerMinute(1)}, caps={"tokens": 0}), r"Quota.caps\['tokens'\] is 0"),
        (lambda: LocalLimiter([Quota("q"), Quota("q")]), "Quota.id is 'q': declare each quota once"),
    ],
)
def test_a_quota_that_cannot_be_says_field_value_and_fix(declare: Callable[[], Any], names: str) -> None:
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


def test_terms_are_rates_per_second_with_the_margin() -> None:
    """600 a minute with a margin of 0.9 is 9 a second; one request may cost a minute's worth, or the cap."""
    limits = {"tokens": PerMinute(600), "requests": PerSecond(4)}
    terms = Quota("q", limits, burst_s=2, margin=0.9, caps={"requests": 1}).terms()
    assert terms == Terms("q", ("requests", "tokens"), (3.6, 9.0), (7.2, 18.0), (1.0, 600.0))
    assert Terms.from_json("q", terms.to_json()) == terms
    assert terms.scaled(0.5).rates == (1.8, 4.5)


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
    """W = ceil(horizon / pace / processes), at least one and at most 64; one until the pace is known."""
    window = Window(horizon_s)
    assert window.size == 1
    window.resize(pace_s, processes)
    assert (window.size, window.low_water) == (size, size // 2)

"""How progress is shown, where it is no terminal."""

from __future__ import annotations

import io

from penstock.progress import LINE_EVERY_S, Log, View, cost, line, notes

FIGURES = {
    "total": 1000,
    "succeeded": 440,
    "dead": 10,
    "retries": 3,
    "seconds": 12.0,
    "seconds_left": 3700.0,
    "per_second": 36.21,
    "cost_microusd": 12_345,
    "unpriced": 0,
    "reasons": ("the quota is used up",),
    "cause": None,
}


def test_a_line_is_read_as_those_of_tqdm() -> None:
    """Share, bar, rows, time gone and left, speed; and what it has cost, failed and repeated."""
    assert line(View("tickets", FIGURES, None)) == (
        "tickets:  45%|█████████           | 450/1000 "
        "[00:12<1:01:40, 36.2 rows/s, $0.0123, 10 failed, 3 retries]"
    )
    assert line(View("tickets", {}, "reading rows")) == "tickets: reading rows"
    ended = FIGURES | {"succeeded": 990}
    assert "| 1000/1000 [00:12<00:00," in line(View("tickets", ended, None)), "nothing is left"
    assert ":  45% 450/1000 [" in line(View("tickets", FIGURES, None), with_bar=False)
    begun = FIGURES | {"total": None, "seconds_left": None, "per_second": 0.0}
    assert "| 450/? [00:12<?, ? rows/s," in line(View("tickets", begun, None))


def test_an_unknown_price_is_no_zero() -> None:
    """Where no price is known the cost is unknown, where some are it is more than their sum."""
    assert cost(FIGURES) == "$0.0123"
    assert cost(FIGURES | {"unpriced": 5}) == "more than $0.0123"
    assert cost(FIGURES | {"unpriced": 5, "cost_microusd": 0}) == "cost unknown"


def test_a_log_gets_a_line_now_and_then_and_the_last_one() -> None:
    """Lines that stay come at once, figures every few seconds, and what is the same once."""
    file, now = io.StringIO(), [0.0]
    log = Log(file, clock=lambda: now[0])
    log.show(View("t", FIGURES, "first calls", said=("resuming: 5 of 10",)))
    assert file.getvalue() == "resuming: 5 of 10\n"
    now[0] = LINE_EVERY_S
    log.show(View("t", FIGURES, "first calls", said=("resuming: 5 of 10",)))
    log.show(View("t", FIGURES | {"succeeded": 990}, None, said=("resuming: 5 of 10",)))
    log.close()
    told = file.getvalue().splitlines()
    assert [text[:7] for text in told] == ["resumin", "t:  45%", "first c", "the quo", "t: 100%"]


def test_what_holds_a_job_back_is_said() -> None:
    """What is waited for, why it is slow, and the last failure."""
    view = View("t", FIGURES | {"cause": "429"}, "first calls")
    assert notes(view) == ["first calls", "the quota is used up", "the last failure: 429"]
    assert notes(View("t", {}, "reading")) == []

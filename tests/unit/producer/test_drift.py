"""Comparing two runs: what counts as moved, and what chance explains."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import orjson
import pytest

from penstock_ledger import OnDrift, RunFigures, Spread
from penstock_producer import ScheduleError
from penstock_producer.reporting.words import moves_in_words
from penstock_producer.schedules.drift import (
    LABELS_MAX,
    NO_VALUE,
    OTHER,
    Compared,
    Labels,
    compare,
    drift_rule,
    labels_of,
)


def spread(values: list[float]) -> Spread:
    return Spread(len(values), sum(values), sum(value * value for value in values))


def run(documents: int = 1_000, labels: dict[str, int] | None = None, **figures: Any) -> Compared:
    given: dict[str, Any] = {
        "dead": 0,
        "withheld": 0,
        "cut": 0,
        "tokens": Spread(0, 0, 0),
        "cost": Spread(0, 0, 0),
    }
    counts = None if labels is None else Labels(sum(labels.values()), Counter(labels))
    return Compared(RunFigures(documents, **(given | figures)), counts)


def moved(before: Compared, now: Compared) -> list[tuple[str, str | None]]:
    found = compare(before, now)
    assert found is not None
    return [(one.figure, one.label) for one in found]


@pytest.mark.parametrize("figure", ["dead", "withheld", "cut"])
def test_a_share_that_has_moved_is_found_both_ways(figure: str) -> None:
    """With its interval, which holds the difference and not zero."""
    counts: list[dict[str, Any]] = [{figure: 10}, {figure: 100}]
    few, many = (run(**count) for count in counts)
    assert moved(few, many) == moved(many, few) == [(figure, None)]
    up, down = ((compare(*both) or [])[0] for both in ((few, many), (many, few)))
    assert 0 < up.low < up.now - up.before < up.high
    assert (down.low, down.high) == pytest.approx((-up.high, -up.low))


def test_the_interval_is_that_of_the_paper() -> None:
    """Newcombe 1998, table II, 56 of 70 and 48 of 80, method 10, at its 95 per cent."""
    from penstock_producer.schedules import drift

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drift, "Z", 1.959964)
        patched.setattr(drift, "LEAST_DOCUMENTS", 1)
        one = (compare(run(80, dead=48), run(70, dead=56)) or [])[0]
    assert (one.low, one.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@pytest.mark.parametrize("seed", range(20))
def test_chance_moves_nothing(seed: int) -> None:
    """Two runs of the same model over the same kind of documents: shares, lengths, costs, labels."""
    luck = random.Random(seed)

    def drawn() -> Compared:
        size = luck.randrange(100, 3_000)
        return run(
            size,
            labels=dict(Counter(luck.choices("abcdef", (50, 25, 12, 6, 4, 3), k=size))),
            dead=sum(luck.random() < 0.03 for _ in range(size)),
            cut=sum(luck.random() < 0.2 for _ in range(size)),
            tokens=spread([luck.expovariate(1 / 200) for _ in range(size)]),
            cost=spread([luck.lognormvariate(5, 1) for _ in range(size)]),
        )

    assert moved(drawn(), drawn()) == []


def test_a_difference_that_matters_to_no_one_is_none() -> None:
    """Of a million documents half a per cent more are beyond chance, and no news."""
    before = run(1_000_000, dead=10_000, tokens=Spread(1_000_000, 2e8, 4.1e10))
    now = run(1_000_000, dead=15_000, tokens=Spread(1_000_000, 2.06e8, 4.3e10))
    assert moved(before, now) == []


def test_means_that_have_moved_are_found() -> None:
    """Longer answers and dearer documents; a mean of figures that are all alike may move, too."""
    luck = random.Random(1)
    short, long = ([luck.gauss(mean, 40) for _ in range(500)] for mean in (200, 240))
    before = run(tokens=spread(short), cost=spread([100.0] * 500))
    now = run(tokens=spread(long), cost=spread([150.0] * 500))
    assert moved(before, now) == [("tokens", None), ("cost", None)]
    assert moves_in_words({"moved": [one.to_json() for one in compare(before, now) or ()]}) == [
        "tokens of an answer: 203 before, now 236",
        "cost of 1,000 documents: $0.1000 before, now $0.1500",
    ]


def test_labels_that_have_moved_are_named() -> None:
    """New ones, lost ones, and a thousand rare ones as one; their text is a stranger's."""
    before = run(labels={"billing": 500, "other": 500})
    now = run(labels={"billing": 480, "sales\x1b[2J": 520})
    assert set(moved(before, now)) == {("label", "other"), ("label", "sales\x1b[2J")}
    said = moves_in_words({"moved": [one.to_json() for one in compare(before, now) or ()]})
    assert "\x1b" not in "".join(said)
    rare = {f"label {number}": 1 for number in range(900)}
    found = moved(run(labels={"billing": 1_000}), run(labels={"billing": 100} | rare))
    assert ("label", OTHER) in found
    assert len(found) <= LABELS_MAX + 1


@pytest.mark.parametrize(("before", "now"), [(99, 1_000), (1_000, 99), (0, 0)])
def test_few_documents_say_nothing(before: int, now: int) -> None:
    """Neither that something has moved, nor that nothing has."""
    assert compare(run(before), run(now)) is None


def test_values_of_a_field_are_counted() -> None:
    """At any depth; what is not JSON, has no such field or one that is no value counts as one."""
    chat = "/v1/chat/completions"
    texts = [
        '{"kind": {"name": "a"}}',
        '{"kind": {"name": 7}}',
        '{"kind": {"name": ["a"]}}',
        '{"kind": 1}',
        "no JSON",
        "[" * 100_000,
    ]
    answers = [
        (None, orjson.dumps({"choices": [{"message": {"content": text}}]})) for text in texts
    ]
    found = labels_of("answer.kind.name", chat, iter([*answers, ("/v1/embeddings", b"{}")]))
    assert found.counts == {"a": 1, "7": 1, NO_VALUE: 5}


@pytest.mark.parametrize(
    ("then", "field", "says"),
    [
        ("sometimes", None, "write report, pause or off"),
        (None, "label", "give drift report or pause"),
        ("off", "label", "give drift report or pause"),
        ("pause", "a..b", "the name of one in answers"),
        ("pause", "", "the name of one in answers"),
        ("pause", "x" * 201, "at most 200 characters"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(then: str | None, field: str | None, says: str) -> None:
    """With the value and the fix."""
    with pytest.raises(ScheduleError, match=says):
        drift_rule(then, field)


def test_rules() -> None:
    """Off is none at all."""
    assert drift_rule(None, None) is drift_rule("off", None) is None
    rule = drift_rule("pause", "label")
    assert rule is not None
    assert (rule.then, rule.field) == (OnDrift.PAUSE, "label")

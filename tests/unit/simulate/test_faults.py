"""Luck that depends on the seed, the document and the number of the call, and on nothing else."""

from __future__ import annotations

from collections import Counter
from statistics import median

import pytest

from penstock_simulate.answers.faults import Fates, Fault, document_of
from penstock_simulate.config import SimulatorConfig

DOCUMENTS = [f"doc-{number}" for number in range(4_000)]


def test_the_same_seed_gives_the_same_weather() -> None:
    """Two simulators with one seed agree on every call; another seed gives other faults."""
    config = SimulatorConfig(error_rate=0.2, drop_rate=0.2, poison_rate=0.1, seed=5)
    one, two, other = (
        Fates(config),
        Fates(config),
        Fates(SimulatorConfig(error_rate=0.2, drop_rate=0.2, seed=6)),
    )
    draws = [one.draw(document, 1) for document in DOCUMENTS]
    assert draws == [two.draw(document, 1) for document in reversed(DOCUMENTS)][::-1]
    assert draws != [other.draw(document, 1) for document in DOCUMENTS]
    assert draws != [one.draw(document, 2) for document in DOCUMENTS]


def test_faults_come_as_often_as_asked_for() -> None:
    """Each rate is the share of calls with that fault, and the rest has none."""
    fates = Fates(
        SimulatorConfig(throttle_rate=0.1, error_rate=0.2, drop_rate=0.05, html_rate=0.15)
    )
    seen = Counter(fates.draw(document, 1).fault for document in DOCUMENTS)
    shares = {fault: number / len(DOCUMENTS) for fault, number in seen.items()}
    expected = {
        Fault.THROTTLE: 0.1,
        Fault.ERROR: 0.2,
        Fault.DROP: 0.05,
        Fault.HTML: 0.15,
        None: 0.5,
    }
    assert shares == pytest.approx(expected, abs=0.02)


def test_every_rate_has_a_fault() -> None:
    """No rate of the configuration is without effect: rate 1 gives that fault to every call."""
    for name in SimulatorConfig.rates():
        config = SimulatorConfig(**{name: 1.0})  # type: ignore[arg-type]  # the names are those of float fields
        assert Fates(config).draw("doc", 1).fault == name.removesuffix("_rate")


def test_latency_has_the_median_that_was_asked_for() -> None:
    """Half of the calls are faster than the configured median, and a sigma of 0 makes all of them
    equal."""
    spread = [
        Fates(SimulatorConfig(latency_ms=200, latency_sigma=0.5)).draw(name, 1).latency_s
        for name in DOCUMENTS
    ]
    assert median(spread) == pytest.approx(0.2, rel=0.05)
    assert min(spread) < 0.08 < 0.5 < max(spread)
    assert Fates(SimulatorConfig(latency_ms=200, latency_sigma=0)).draw("doc", 3).latency_s == 0.2


def test_a_poisoned_document_is_poisoned_for_good() -> None:
    """The share is met, all kinds occur, and neither the job nor the generation nor the call
    changes what a document meets."""
    fates = Fates(SimulatorConfig(poison_rate=0.1))
    verdicts = [fates.poison(document) for document in DOCUMENTS]
    kinds = Counter(verdict for verdict in verdicts if verdict)
    assert sum(kinds.values()) / len(DOCUMENTS) == pytest.approx(0.1, abs=0.015)
    assert len(kinds) == 3
    assert document_of("job-1:doc-7") == document_of("job-2:doc-7~g12") == "doc-7"
    assert document_of("a-hash-without-a-job") == "a-hash-without-a-job"

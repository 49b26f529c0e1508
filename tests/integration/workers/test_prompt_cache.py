"""A provider's prompt cache in a real fleet: primed once for all workers, and by faults not at all
stopped. The provider writes down what it has charged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from fleet import Fleet, until

from penstock_ledger import OutcomeStore
from penstock_ledger.model import Job, JobState
from penstock_producer import Producer
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.prices import PROMPT_CACHE
from penstock_producer.settings import ProducerSettings

CLAUDE = "claude-sonnet-4-5"
PRICES = {"input": 1.0, "cached_input": 0.1, "cache_write": 1.25, "output": 0.0}
MANUALS, DOCUMENTS = 3, 36
LATENCY_MS = 150
TIME_S = 60.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings: dict[str, object] = {
        "providers__default__kind": "anthropic",
        "providers__default__prices": json.dumps({CLAUDE: PRICES}),
    }
    with Fleet(tmp_path_factory.mktemp("prompt-cache"), settings=settings) as fleet:
        settings["providers__default__base_url"] = fleet.provider.root
        fleet.provider.start("--latency-ms", str(LATENCY_MS), "--usd-per-mtok-in", "1")
        fleet.control()
        fleet.ready(*(fleet.worker(16) for _ in range(2)))
        yield fleet


def submit(fleet: Fleet, name: str, prompt_cache: str = "on") -> Job:
    """Documents of three manuals, each manual of 2,000 tokens, in the order that suits it least."""
    path = fleet.folder / f"{name}.jsonl"
    manuals = [f"{name} {number} ".ljust(16) * 500 for number in range(MANUALS)]
    rows = ({"id": f"d{at}", "m": manuals[at % MANUALS], "q": str(at)} for at in range(DOCUMENTS))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "endpoint": "/v1/messages",
        "model": CLAUDE,
        "prompt": "{m} Question {q}",
        "params": {"max_tokens": 5},
        "prompt_cache": prompt_cache,
    }
    facts = ProviderFacts.model_validate({"kind": "anthropic", "prices": {CLAUDE: PRICES}})
    settings = ProducerSettings(database_url=fleet.database_url, providers={"default": facts})
    with Producer(settings) as producer:
        return producer.submit(path, spec, job_key=name)


def used(fleet: Fleet, job: Job) -> list[dict[str, Any]]:
    """Return the usage of each answer, once all documents have one."""
    fleet.wait_for(job, JobState.COMPLETED, TIME_S)
    results = list(fleet.producer.results(job.job_id))
    assert Counter(result.key.doc_id for result in results) == Counter(
        f"d{at}" for at in range(DOCUMENTS)
    )
    return [json.loads(result.body)["usage"] for result in results]


def written(usages: list[dict[str, Any]]) -> int:
    return sum(usage["cache_creation_input_tokens"] > 0 for usage in usages)


def test_each_beginning_is_written_once_by_two_workers_and_costs_less(fleet: Fleet) -> None:
    """Of 36 documents three write, and all others read; that is booked as saved, and what the
    provider charged is what the ledger says."""
    with fleet.explained():
        before = fleet.provider.stats()["spent_usd"]
        dear = submit(fleet, "dear", "off")
        assert written(used(fleet, dear)) == 0
        between = fleet.provider.stats()["spent_usd"]
        job = submit(fleet, "cheap")
        usages = used(fleet, job)
        assert written(usages) == MANUALS
        assert sum(usage["cache_read_input_tokens"] > 0 for usage in usages) == DOCUMENTS - MANUALS
        spent = fleet.provider.stats()["spent_usd"] - between
        cost = fleet.producer.status(job.job_id).counts.cost_microusd / 1e6
        assert cost == pytest.approx(spent, abs=1e-4)
        assert spent < 0.3 * (between - before)
        (saving,) = OutcomeStore(fleet.producer._database).savings(job.job_id)
        assert (saving.cause, saving.answers) == (PROMPT_CACHE, DOCUMENTS)
        saved = saving.saved_microusd / 1e6
        assert saved == pytest.approx(between - before - spent, rel=0.02)


def test_a_429_on_the_one_that_primes_lets_the_next_one_prime(fleet: Fleet) -> None:
    """No document waits for its retry, and none is lost."""
    with fleet.explained():
        fleet.provider.tell(refuse={"kind": "rate_limit_exceeded", "calls": 2})
        usages = used(fleet, submit(fleet, "limited"))
        assert MANUALS <= written(usages) <= MANUALS + 2


def test_a_redis_that_forgets_costs_a_write_for_each_worker(fleet: Fleet) -> None:
    """The window is fed again, and each worker primes what it does not know itself."""
    with fleet.explained():
        fleet.provider.tell(latency_ms=500)
        job = submit(fleet, "forgotten")
        until(lambda: fleet.provider.in_flight() >= MANUALS, 20, "some are under way")
        fleet.store.client().flushall()
        usages = used(fleet, job)
        assert MANUALS <= written(usages) <= 3 * MANUALS
        fleet.provider.tell(latency_ms=LATENCY_MS)


def test_a_killed_primer_holds_nothing_up(fleet: Fleet) -> None:
    """Its claim ends with its lease: then another worker primes, and the job ends."""
    with fleet.explained():
        fleet.provider.tell(latency_ms=4_000)
        job = submit(fleet, "killed")
        until(lambda: fleet.provider.in_flight() >= MANUALS, 20, "the primers are under way")
        for process in fleet.processes:
            if process.name.startswith("api"):
                process.kill()
        fleet.provider.tell(latency_ms=LATENCY_MS)
        fleet.ready(fleet.worker(16))
        usages = used(fleet, job)
        # the provider has cached what the dead have asked, or not: their answers were under way
        assert written(usages) <= MANUALS

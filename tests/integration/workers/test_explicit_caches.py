"""Explicit caches of Gemini in a real fleet: one for each beginning, also where workers die.
The provider writes down what it has charged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest
from fleet import Fleet, until

from penstock_ledger import OutcomeStore
from penstock_ledger.model import Job, JobState
from penstock_producer import JobSpec, Producer
from penstock_producer.accepting.sampling import preview
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.prices import PROMPT_CACHE
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import open_source

MODEL = "gemini-2.5-flash"
PRICES = {"input": 1.0, "cached_input": 0.1, "cache_hour": 3.0, "output": 0.0}
MANUALS, DOCUMENTS = 2, 40
HITS = 0.4  # of implicit caches, which promise none
TIME_S = 60.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings: dict[str, object] = {
        "providers__default__kind": "gemini",
        "providers__default__prices": json.dumps({MODEL: PRICES}),
    }
    with Fleet(tmp_path_factory.mktemp("explicit"), settings=settings) as fleet:
        settings["providers__default__base_url"] = fleet.provider.root
        prices = ("--usd-per-mtok-in", "1", "--usd-per-mtok-hour", "3")
        fleet.provider.start("--latency-ms", "100", "--prompt-cache-hits", str(HITS), *prices)
        fleet.control()
        fleet.ready(*(fleet.worker(8) for _ in range(2)))
        yield fleet


def submit(
    fleet: Fleet, name: str, prompt_cache: str = "explicit", documents: int = DOCUMENTS
) -> Job:
    """Documents of two manuals, each manual of 5,000 tokens, by turns."""
    path = fleet.folder / f"{name}.jsonl"
    manuals = [f"{name} {number} ".ljust(16) * 1_250 for number in range(MANUALS)]
    rows = ({"id": f"d{at}", "m": manuals[at % MANUALS], "q": str(at)} for at in range(documents))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Producer(settings_of(fleet)) as producer:
        return producer.submit(path, spec_of(prompt_cache), job_key=name)


def settings_of(fleet: Fleet) -> ProducerSettings:
    facts = ProviderFacts.model_validate({"kind": "gemini", "prices": {MODEL: PRICES}})
    return ProducerSettings(database_url=fleet.database_url, providers={"default": facts})


def spec_of(prompt_cache: str) -> dict[str, Any]:
    return {
        "endpoint": "/v1beta/generateContent",
        "model": MODEL,
        "prompt": "{m} Question {q}",
        "params": {"maxOutputTokens": 5},
        "prompt_cache": prompt_cache,
    }


def estimated_usd(fleet: Fleet, name: str) -> float:
    """Return what a preview of the job says."""
    path, spec = fleet.folder / f"{name}.jsonl", JobSpec.from_json(spec_of("explicit"))
    settings = settings_of(fleet)
    found = preview(open_source(str(path), spec, settings), spec, settings.prices, 0)
    assert found.cost_usd is not None
    return found.cost_usd


def used(fleet: Fleet, job: Job, documents: int = DOCUMENTS) -> list[dict[str, Any]]:
    """Return the usage of each answer, once all documents have one."""
    fleet.wait_for(job, JobState.COMPLETED, TIME_S)
    results = list(fleet.producer.results(job.job_id))
    assert Counter(result.key.doc_id for result in results) == Counter(
        f"d{at}" for at in range(documents)
    )
    return [json.loads(result.body)["usageMetadata"] for result in results]


def read(usages: list[dict[str, Any]]) -> int:
    return sum("cachedContentTokenCount" in usage for usage in usages)


def caches(fleet: Fleet, job: Job) -> list[dict[str, Any]]:
    """Return those that the provider has of a job."""
    with urlopen(f"{fleet.provider.root}/v1beta/cachedContents") as answer:
        found: list[dict[str, Any]] = json.load(answer).get("cachedContents", [])
    return [one for one in found if job.job_id in one["displayName"]]


def cost_usd(fleet: Fleet, job: Job) -> float:
    return fleet.producer.status(job.job_id).counts.cost_microusd / 1e6


def spent_usd(fleet: Fleet) -> float:
    spent: float = fleet.provider.stats()["spent_usd"]
    return spent


def test_two_workers_make_one_cache_each_and_it_costs_less_than_luck(fleet: Fleet) -> None:
    """Each document reads, the provider has charged what the ledger says, making and rent included,
    and the job's caches are deleted at its end."""
    with fleet.explained():
        before = spent_usd(fleet)
        lucky = submit(fleet, "lucky", "on")
        assert 0 < read(used(fleet, lucky)) < DOCUMENTS
        between = spent_usd(fleet)
        job = submit(fleet, "explicit")
        assert read(used(fleet, job)) == DOCUMENTS
        spent = spent_usd(fleet) - between
        assert cost_usd(fleet, job) == pytest.approx(spent, abs=1e-4)
        assert spent < 0.7 * (between - before)
        (saving,) = OutcomeStore(fleet.producer._database).savings(job.job_id)
        assert (saving.cause, saving.answers) == (PROMPT_CACHE, DOCUMENTS)
        whole = DOCUMENTS * 5_000 / 1e6
        assert saving.saved_microusd / 1e6 == pytest.approx(whole - spent, rel=0.02)
        assert estimated_usd(fleet, "explicit") == pytest.approx(spent, rel=0.15)
        until(lambda: not caches(fleet, job), 30, "the caches are deleted")


def test_a_cache_that_is_gone_costs_a_whole_prompt_and_is_made_anew(fleet: Fleet) -> None:
    """No document dies of it, and those that come later read again."""
    with fleet.explained():
        fleet.provider.tell(latency_ms=1_000)
        job = submit(fleet, "gone", documents=8 * DOCUMENTS)
        until(lambda: len(caches(fleet, job)) == MANUALS, 20, "the caches are made")
        first = {one["name"] for one in caches(fleet, job)}
        for name in first:
            urlopen(Request(f"{fleet.provider.root}/v1beta/{name}", method="DELETE")).close()
        fleet.provider.tell(latency_ms=100)
        until(lambda: {one["name"] for one in caches(fleet, job)} - first, 20, "they are made anew")
        assert 0 < read(used(fleet, job, 8 * DOCUMENTS)) <= 8 * DOCUMENTS
        assert not fleet.producer.status(job.job_id).counts.dead


def test_a_worker_that_dies_over_a_new_cache_leaves_it_to_the_next(fleet: Fleet) -> None:
    """It is found again by its title, and paid for once."""
    with fleet.explained():
        for process in fleet.processes:
            if process.name.startswith("api"):
                process.kill()
        before = spent_usd(fleet)
        fleet.ready(fleet.worker(8, failpoints="cache_made:kill"))
        job = submit(fleet, "killed")
        until(lambda: bool(caches(fleet, job)), 20, "a cache is made, and its maker dies")
        fleet.ready(fleet.worker(8))
        assert read(used(fleet, job)) == DOCUMENTS
        titles = Counter(one["displayName"] for one in caches(fleet, job))
        assert not titles or max(titles.values()) == 1
        assert cost_usd(fleet, job) == pytest.approx(spent_usd(fleet) - before, abs=1e-4)


def test_a_provider_that_makes_no_cache_is_asked_whole(fleet: Fleet) -> None:
    """A limit on making them ends no document."""
    with fleet.explained():
        fleet.provider.tell(refuse={"kind": "rate_limit_exceeded", "calls": 4})
        assert len(used(fleet, submit(fleet, "limited"))) == DOCUMENTS

"""Equal requests in a real fleet: Redis, SQL, workers as processes, and a provider that writes down
each call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet, until

from penstock_ledger import keys
from penstock_ledger.model import Job, JobState

COLD = {"params": {"temperature": 0}}
PRICED = {"providers__default__usd_per_mtok_in": 1000, "providers__default__usd_per_mtok_out": 1000}
TEXTS = 4


def source(
    fleet: Fleet, name: str, documents: int, texts: int = TEXTS, word: str = "review"
) -> Path:
    path = fleet.folder / f"{name}.jsonl"
    path.write_text(
        "".join(f'{{"id":"doc-{n}","text":"{word} {n % texts}"}}\n' for n in range(documents))
    )
    return path


def submit(fleet: Fleet, name: str, documents: int, *, word: str = "review", **spec: object) -> Job:
    found = source(fleet, name, documents, word=word)
    return fleet.producer.submit(found, fleet.spec(**(COLD | spec)), job_key=name)


def renew_workers(fleet: Fleet) -> None:
    """Others, which remember nothing of the last minute."""
    for process in fleet.processes:
        if process.name.startswith("api"):
            process.kill()
    fleet.ready(fleet.worker(16))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("reuse"), settings=PRICED) as fleet:
        fleet.provider.start("--latency-ms", "100", "--latency-sigma", "0")
        fleet.control()
        fleet.ready(*(fleet.worker(16) for _ in range(2)))
        yield fleet


def test_equal_documents_cost_one_call_each_and_all_have_results(fleet: Fleet) -> None:
    """40 documents of 4 texts in two workers: 4 calls, 40 results, and the screen, the report and
    the lines say so."""
    with fleet.explained():
        job = submit(fleet, "dedup", 40, dedup="on", tenant="t1")
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, 40)
        assert (len(account.results), account.calls.total()) == (40, TEXTS)
        results = list(fleet.producer.results(job.job_id))
        reused = [result for result in results if result.reason is not None]
        assert {result.reason for result in reused} == {"dedup"}
        assert len(reused) == 40 - TEXTS
        assert all(
            (result.cost_microusd, result.calls) == (0, 0) and result.prompt_tokens
            for result in reused
        )
        texts: dict[int, set[bytes]] = {}
        for result in results:
            texts.setdefault(int(result.key.doc_id.removeprefix("doc-")) % TEXTS, set()).add(
                result.body
            )
        assert [len(bodies) for bodies in texts.values()] == [1] * TEXTS
        counts = fleet.producer.status(job.job_id).counts
        asked = [result for result in results if result.reason is None]
        assert (counts.reused, counts.calls) == ({"dedup": 40 - TEXTS}, TEXTS)
        assert counts.prompt_tokens == sum(result.prompt_tokens or 0 for result in asked)
        assert counts.cost_microusd == sum(result.cost_microusd for result in asked) > 0
        report = json.loads(fleet.penstock("status", "dedup", "--json"))
        assert (report["deduplicated"], report["cached"], report["calls"]) == (40 - TEXTS, 0, TEXTS)
        assert "36 answered by an equal request" in fleet.penstock("status", "dedup")
        lines = map(json.loads, fleet.penstock("results", "dedup", "-o", "-").splitlines())
        assert Counter(line.get("penstock", {}).get("from") for line in lines) == {
            "dedup": 40 - TEXTS,
            None: TEXTS,
        }


def test_a_cache_serves_later_jobs_of_its_tenant_and_no_other(fleet: Fleet) -> None:
    """The second job makes no call and pays nothing; another tenant, a job without cache, and other
    parameters pay."""
    with fleet.explained():
        first = submit(fleet, "fill", 8, word="cached", cache_s=3600.0, tenant="red")
        fleet.wait_for(first, JobState.COMPLETED, 60)
        assert fleet.account(first, 8).calls.total() == TEXTS
        again = submit(fleet, "again", 8, word="cached", cache_s=3600.0, tenant="red")
        fleet.wait_for(again, JobState.COMPLETED, 60)
        assert fleet.account(again, 8).calls.total() == 0
        assert fleet.producer.status(again.job_id).counts.reused == {"cache": 8}
        assert fleet.producer.status(again.job_id).counts.cost_microusd == 0
        for name, calls, other in (
            ("blue", TEXTS, {"tenant": "blue", "cache_s": 3600.0}),
            ("plain", 8, {"tenant": "red"}),
            (
                "longer",
                TEXTS,
                {"tenant": "red", "cache_s": 3600.0, "params": {"temperature": 0, "max_tokens": 9}},
            ),
        ):
            job = submit(fleet, name, 8, word="cached", **other)
            fleet.wait_for(job, JobState.COMPLETED, 60)
            assert fleet.account(job, 8).calls.total() == calls, name


def test_a_cache_outlives_neither_its_results_nor_redis(fleet: Fleet) -> None:
    """When the results are purged, or Redis forgot whose they are, the requests are sent again."""
    with fleet.explained():
        first = submit(fleet, "purged", 8, word="gone", cache_s=3600.0)
        fleet.wait_for(first, JobState.COMPLETED, 60)
        fleet.account(first, 8)
        fleet.penstock("purge", "purged", "--yes")
        renew_workers(fleet)
        second = submit(fleet, "after", 8, word="gone", cache_s=3600.0)
        fleet.wait_for(second, JobState.COMPLETED, 60)
        assert fleet.account(second, 8).calls.total() == TEXTS
        fleet.store.client().delete(keys.answers_of_tenant(""))
        renew_workers(fleet)
        third = submit(fleet, "forgotten", 8, word="gone", cache_s=3600.0)
        fleet.wait_for(third, JobState.COMPLETED, 60)
        assert fleet.account(third, 8).calls.total() == TEXTS


def test_one_who_waits_leads_when_the_leader_is_killed(tmp_path: Path) -> None:
    """kill -9 of the worker that sends the request: another worker's equal document is sent, and
    then answers all."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "60000", "--latency-sigma", "0")
        fleet.control()
        leader = fleet.worker(16)
        fleet.ready(leader)
        found = source(fleet, "one", 12, texts=1)
        job = fleet.producer.submit(found, fleet.spec(**COLD, dedup="on"), job_key="one")
        until(lambda: fleet.provider.in_flight() == 1, 30, "one of them is sent")
        other = fleet.worker(16)
        fleet.ready(other)
        fleet.provider.tell(latency_ms=100)
        leader.kill()
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, 12)
        assert (len(account.results), account.calls.total()) == (12, 2)


def test_a_paused_job_is_not_answered_and_a_replay_takes_no_failure(tmp_path: Path) -> None:
    """Equal documents that fail each have a dead letter of their own; replayed on a provider that
    is well again, one call answers all."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "20", "--poison-rate", "1")
        fleet.control()
        fleet.ready(fleet.worker(16))
        found = source(fleet, "sick", 6, texts=1)
        job = fleet.producer.submit(found, fleet.spec(**COLD, dedup="on"), job_key="sick")
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert len(fleet.account(job, 6).dead) == 6
        before = fleet.provider_calls()
        fleet.provider.tell(poison_rate=0)
        renew_workers(fleet)
        fleet.producer.replay(job.job_id)
        until(lambda: fleet.producer.status(job.job_id).counts.succeeded == 6, 60, "all are well")
        assert fleet.provider_calls() - before == 1

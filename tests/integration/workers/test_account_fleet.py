"""Money once spent stays in the books: a real fleet against the provider's own counter of what it
has charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doors import asked, door, door_settings
from fleet import Fleet
from metrics_page import scrape
from servers import free_port

from penstock_ledger import OutcomeStore, open_database, purge_job
from penstock_ledger.model import Job, JobState
from penstock_producer import Producer, ProducerSettings
from penstock_producer.settings import ProviderFacts

TIME_S = 60.0
DOCUMENTS = 8
PRICES = {"usd_per_mtok_in": 100.0, "usd_per_mtok_out": 1_000.0}
ONE_CALL_USD = 0.064 + 0.03  # at most: 64 tokens, and a short prompt by its bytes
MISSED = {
    "response_schema": {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    },
    "schema_repairs": 0,
    "max_attempts": 2,
    "params": {"max_tokens": 64},
}


def test_what_was_paid_stays_in_the_books_and_bounds_the_budget(tmp_path: Path) -> None:
    """Every answer misses its schema: all documents die, and are paid twice.

    Redis is lost, the dead letters are replayed, and then the job is purged: costs, report, HTTP,
    page and metrics say what the provider has charged. A second job has a budget that its first
    generation nearly spends: its replay pauses within it, and says what helps."""
    with Fleet(tmp_path) as fleet:
        flags = [
            part
            for name, price in PRICES.items()
            for part in (f"--{name.replace('_', '-')}", str(price))
        ]
        fleet.provider.start("--structured", "ignored", *flags)
        prices: dict[str, Any] = {
            f"providers__default__{name}": value for name, value in PRICES.items()
        }
        fleet.control(**prices)
        port = free_port()
        fleet.worker(8, metrics_port=port, **prices)
        of_default = ProviderFacts.model_validate(PRICES)
        with Producer(
            ProducerSettings(database_url=fleet.database_url, providers={"default": of_default})
        ) as producer:
            job = producer.submit(fleet.source(DOCUMENTS), fleet.spec(**MISSED), job_key="paid")
            fleet.wait_for(job, JobState.COMPLETED, TIME_S)
            assert fleet.producer.status(job.job_id).counts.dead == DOCUMENTS
            run = _charged(fleet)
            fleet.store.client().flushall()
            fleet.provider.tell(structured="json_schema")
            producer.replay(job.job_id)
            fleet.wait_for(job, JobState.COMPLETED, TIME_S)
            assert fleet.producer.status(job.job_id).counts.succeeded == DOCUMENTS
            assert _charged(fleet) > run > 0
            _all_agree(fleet, job, port)

            fleet.provider.tell(structured="ignored")
            budget, before = run + ONE_CALL_USD, _charged(fleet)
            assert budget < 2 * run, "a replay that fails again costs as much as the run"
            limited = producer.submit(
                fleet.source(DOCUMENTS), fleet.spec(budget_usd=budget, **MISSED), job_key="limited"
            )
            fleet.wait_for(limited, JobState.COMPLETED, TIME_S)
            fleet.store.client().flushall()
            producer.replay(limited.job_id)
            fleet.wait_for(limited, JobState.PAUSED, TIME_S)
            fleet.wait_for_quiet(limited)
            assert _charged(fleet) - before <= budget
            why = producer.status(limited.job_id).job.reason or ""
            assert "budget_exhausted" in why

        spent = _costs(fleet)
        purge_job(open_database(fleet.database_url), job.job_id)
        assert _costs(fleet) == spent == pytest.approx(_charged(fleet), abs=1e-5)


def test_a_service_tier_costs_what_the_provider_charges_for_it(tmp_path: Path) -> None:
    """Asked for in the flex tier at half the price, also where control has chosen it, and in
    priority at twice: the account of each job says so, and together they are what the provider has charged. Documents that flex has no
    room for are asked for at the standard price at once, and no attempt is counted. What tiers
    saved and added is what the provider would have charged without them: in reports, costs, over
    HTTP and in metrics."""
    tiers = {"flex": {"discount": 0.5}, "priority": {"input": 200.0, "output": 2_000.0}}
    own = {"input": 100.0, "output": 1_000.0, "tiers": tiers}
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--usd-per-mtok-in", "100", "--usd-per-mtok-out", "1000")
        prices: dict[str, Any] = {
            "providers__default__prices": json.dumps({fleet.spec()["model"]: own})
        }
        fleet.control(**prices)
        port = free_port()
        fleet.worker(8, metrics_port=port, **prices)
        source, costs = fleet.source(DOCUMENTS), dict[str, float]()
        for tier in ("flex", "default", "priority"):
            spec = fleet.spec(params={"max_tokens": 64, "service_tier": tier})
            job = fleet.producer.submit(source, spec, job_key=tier)
            fleet.wait_for(job, JobState.COMPLETED, TIME_S)
            counts = fleet.producer.status(job.job_id).counts
            costs[tier] = counts.cost_microusd / 1e6
            assert counts.unpriced == 0
        assert 0 < costs["flex"] * 2 == pytest.approx(costs["default"], abs=1e-5)
        assert sum(costs.values()) == pytest.approx(_charged(fleet), abs=1e-5)

        fleet.provider.tell(flex_full_share=0.5)
        spec = fleet.spec(params={"max_tokens": 64}, tier="flex", dedup="off")
        job = fleet.producer.submit(source, spec, job_key="flex or standard")
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        fleet.account(job, DOCUMENTS)
        calls = fleet.provider.calls(job).values()
        assert set(calls) == {1, 2}, "some had room in flex, others were asked for once more"
        assert {one.attempts for one in fleet.producer.results(job.job_id)} == {1}
        mixed = fleet.producer.status(job.job_id).counts.cost_microusd / 1e6
        assert costs["flex"] < mixed < costs["default"]
        assert sum(costs.values()) + mixed == pytest.approx(_charged(fleet), abs=1e-5)
        fleet.provider.tell(flex_full_share=0.0)
        spec = fleet.spec(
            params={"max_tokens": 64}, lane="auto", lanes=["api"], deadline_s=3_600.0, dedup="off"
        )
        job = fleet.producer.submit(source, spec, job_key="auto")
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        assert fleet.producer.status(job.job_id).job.tier_now == "flex"
        assert "lane api in the flex tier since" in fleet.penstock("status", "auto")
        chosen = fleet.producer.status(job.job_id).counts.cost_microusd / 1e6
        assert chosen == pytest.approx(costs["flex"], abs=1e-5)
        saved = {
            "auto": chosen,
            "flex": costs["flex"],
            "default": 0.0,
            "priority": -costs["default"],
            "flex or standard": costs["default"] - mixed,
        }
        _all_say_what_was_saved(fleet, saved, port)


def _charged(fleet: Fleet, what: str = "spent_usd") -> float:
    """What the provider says, in US dollars."""
    with fleet.provider._open("/stats") as answer:
        return float(json.load(answer)[what])


def _costs(fleet: Fleet, what: str = "cost_usd") -> float:
    lines = fleet.penstock("costs", "--json").splitlines()
    return float(sum(json.loads(line)[what] for line in lines))


def _all_say_what_was_saved(fleet: Fleet, saved: dict[str, float], metrics_port: int) -> None:
    for job_key, usd in saved.items():
        report = json.loads(fleet.penstock("report", job_key, "--json"))["saved"]
        assert report["is_noted"]
        found = sum(one["saved_usd"] for one in report["by_cause"].values())
        assert found == pytest.approx(usd, abs=1e-5), job_key
        assert {one["answers"] for one in report["by_cause"].values()} <= set(range(DOCUMENTS + 1))
    text = fleet.penstock("report", "priority")
    assert f"paid beyond ordinary prices: ${-saved['priority']:,.4f} for the priority tier" in text
    in_all = _charged(fleet, "ordinary_usd") - _charged(fleet)
    metered = scrape(metrics_port)["penstock_savings_usd_total"]
    by_effect = {
        effect: sum(usd for labels, usd in metered.items() if dict(labels)["effect"] == effect)
        for effect in ("saved", "lost")
    }
    settings = door_settings(fleet.folder, fleet.store.url).model_copy(
        update={"database_url": fleet.database_url}
    )
    with door(settings) as url:
        listed = asked(f"{url}/ui/spending?period=all").body.decode()
    found_in = {
        "the jobs": sum(saved.values()),
        "costs": _costs(fleet, "saved_usd"),
        "metrics": by_effect["saved"] - by_effect["lost"],
    }
    assert found_in == {name: pytest.approx(in_all, abs=1e-5) for name in found_in}
    assert " saved</span>" in listed


def _all_agree(fleet: Fleet, job: Job, metrics_port: int) -> None:
    charged = _charged(fleet)
    settings = door_settings(fleet.folder, fleet.store.url).model_copy(
        update={"database_url": fleet.database_url}
    )
    with door(settings) as url:
        of_job = asked(f"{url}/v1/jobs/{job.job_id}").content["usage"]["cost_usd"]
        report = asked(f"{url}/v1/jobs/{job.job_id}/report").content
        page = asked(f"{url}/ui/jobs/{job.job_id}").body.decode()
        listed = asked(f"{url}/ui/spending?period=all").body.decode()
    database = open_database(fleet.database_url)
    counts = OutcomeStore(database).counts(job.job_id)
    database.close()
    metered = sum(scrape(metrics_port)["penstock_cost_usd_total"].values())
    printed = json.loads(fleet.penstock("report", "paid", "--json"))
    found = {
        "SQL": counts.cost_microusd / 1e6,
        "costs": _costs(fleet),
        "report": printed["cost_usd"],
        "HTTP": of_job,
        "report over HTTP": report["cost_usd"],
        "metrics": metered,
    }
    assert found == {name: pytest.approx(charged, abs=1e-5) for name in found}
    assert f"${charged:,.4f}" in page or f"${charged:,.2f}" in page
    assert f"${charged:,.4f}" in listed or f"${charged:,.2f}" in listed
    assert printed["visible_usd"] < charged
    assert printed["spent_besides"]["superseded"] == pytest.approx(
        charged - printed["visible_usd"], abs=1e-5
    )

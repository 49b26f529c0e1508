"""A budget with real workers and the simulated provider."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

from fleet import Fleet

from penstock_ledger.model import JobState
from penstock_producer import Producer, ProducerSettings
from penstock_producer.settings import ProviderFacts

WORK_S = 90.0
DOCUMENTS = 60
PRICE = {"usd_per_mtok_in": 100.0, "usd_per_mtok_out": 1_000.0}
CALL_USD = 0.064 + 0.02  # of 64 tokens, and of a short prompt


def test_a_budget_holds_over_workers_that_are_killed(tmp_path: Path) -> None:
    """Two workers of ten slots each, one of them killed with calls in flight: the job pauses within
    its budget, says what the rest costs, and goes on to its end with the command that it names."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "300", "--latency-sigma", "0.3")
        prices: dict[str, Any] = {
            f"providers__default__{name}": value for name, value in PRICE.items()
        }
        fleet.control(**prices)
        victim, _ = (fleet.worker(10, visibility_timeout_s=4, **prices) for _ in range(2))
        settings = ProducerSettings(
            database_url=fleet.database_url,
            providers={"default": ProviderFacts.model_validate(PRICE)},
        )
        with Producer(settings) as producer:
            spec = fleet.spec(budget_usd=0.5, params={"max_tokens": 64})
            job = producer.submit(fleet.source(DOCUMENTS), spec, job_key="limited")
        fleet.wait_for_outcomes(job, 4)
        victim.send(signal.SIGKILL)
        fleet.wait_for(job, JobState.PAUSED, WORK_S)
        fleet.wait_for_quiet(job)
        found = fleet.producer.status(job.job_id)
        spent = found.counts.cost_microusd / 1_000_000
        assert 0.5 - 2 * CALL_USD < spent <= 0.5, found.job.reason
        told = fleet.run("status", "limited").stdout
        command = re.search(r"penstock (resume limited --budget-usd [\d.]+)$", told, re.MULTILINE)
        assert command is not None, told
        refused = fleet.run("resume", "limited", "--budget-usd", "0.1")
        assert (refused.returncode, "are spent already" in refused.stderr) == (2, True)
        fleet.penstock(*command[1].split()[:-1], "50")
        fleet.wait_for(job, JobState.COMPLETED, WORK_S)
        assert fleet.producer.status(job.job_id).counts.succeeded == DOCUMENTS


def test_a_tenants_budget_holds_over_its_jobs_and_a_larger_one_lets_them_go_on(
    tmp_path: Path,
) -> None:
    """Two jobs of a tenant that has 30 cents, and each needs more: both pause within it, name it
    and the key that helps, and end once that is made; a job of another tenant is not kept
    waiting."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "50", "--latency-sigma", "0.3")
        prices: dict[str, Any] = {
            f"providers__default__{name}": value for name, value in PRICE.items()
        }
        fleet.penstock("keys", "create", "night", "--tenant", "shop", "--budget-usd", "0.3")
        fleet.control(**prices)
        fleet.worker(10, **prices)
        spec = fleet.spec(params={"max_tokens": 64})
        jobs = [
            fleet.producer.submit(
                fleet.source(40, name=f"of-{nth}"),
                spec | {"tenant": tenant},
                job_key=f"of-{tenant}-{nth}",
            )
            for nth, tenant in enumerate(("shop", "shop", "other"))
        ]
        fleet.wait_for(jobs[2], JobState.COMPLETED, WORK_S)
        for job in jobs[:2]:
            fleet.wait_for(job, JobState.PAUSED, WORK_S)
        found = [fleet.producer.status(job.job_id) for job in jobs[:2]]
        spent = sum(one.counts.cost_microusd for one in found) / 1_000_000
        assert 0.3 - 2 * CALL_USD < spent <= 0.3, [one.job.reason for one in found]
        shown = [fleet.run("status", one.job.job_key).stdout for one in found]
        key = re.compile(
            r"penstock (keys create \w+ --tenant shop --budget-usd [\d.]+)$", re.MULTILINE
        )
        told = [key.search(one) for one in shown]
        assert all(told), shown
        command = told[0]
        assert command is not None
        fleet.penstock(*command[1].split()[:-1], "50")
        for job in jobs[:2]:
            fleet.wait_for(job, JobState.COMPLETED, WORK_S)
            assert fleet.producer.status(job.job_id).counts.succeeded == 40

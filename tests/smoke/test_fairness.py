"""Jobs side by side on one paced fleet: whichever came first, and however large it is, the others
get their part."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from fleet import Fleet

from penstock_ledger.model import Job, JobState

WORKERS, CONCURRENCY = 2, 8
SLOTS = WORKERS * CONCURRENCY
RPM = 12_000  # below what the fleet could do, so that the quota is what they share
BIG, SMALL = 20_000, 1_100
WINDOW = 10 * SLOTS  # of all jobs: they take turns of no more than their share of it
MOST = 1_000  # of the small job: what comes after is its tail, too short for a full share


def paced(fleet: Fleet, **control: object) -> None:
    fleet.provider.start("--latency-ms", "20")
    fleet.control(**control)
    fleet.ready(*(fleet.worker(CONCURRENCY, providers__default__rpm=RPM) for _ in range(WORKERS)))


def calls_during(fleet: Fleet, job: Job, first: int, last: int) -> Counter[str]:
    """Calls by job in the order in which the provider got them, from the ``first`` one of ``job``
    to its ``last``."""
    lines = fleet.provider.call_log.read_text().splitlines()
    calls = [json.loads(line)["document"].partition(":")[0] for line in lines]
    mine = [at for at, job_id in enumerate(calls) if job_id == job.job_id]
    return Counter(calls[mine[first - 1] : mine[last - 1] + 1])


def test_a_small_urgent_job_does_not_wait_for_a_large_one(tmp_path: Path) -> None:
    """Submitted while twenty thousand documents are being worked off, fifty urgent ones end long
    before them."""
    with Fleet(tmp_path) as fleet:
        paced(fleet)
        big = fleet.submit(BIG, key="big")
        fleet.wait_for_outcomes(big, 400)
        urgent = fleet.submit(50, key="urgent", priority="urgent")
        fleet.wait_for(urgent, JobState.COMPLETED, 60)
        meanwhile = calls_during(fleet, urgent, 1, 50)
        assert fleet.finished(big) <= BIG // 10
        assert fleet.finished(urgent) == meanwhile[urgent.job_id] == 50
        assert meanwhile[big.job_id] > 0, "the others do not starve"


@pytest.mark.parametrize("late", [False, True], ids=["together", "later"])
def test_jobs_of_equal_weight_get_equal_parts(tmp_path: Path, late: bool) -> None:
    """A job of hundreds of documents gets as many calls as one of twenty thousand, for as long as
    it lives."""
    with Fleet(tmp_path) as fleet:
        if late:
            paced(fleet, window=WINDOW)
        big = fleet.submit(BIG, key="big")
        if late:
            fleet.wait_for_outcomes(big, 400)
        small = fleet.submit(SMALL, key="small")
        if not late:
            paced(fleet, window=WINDOW)
        fleet.wait_for_outcomes(small, MOST, 120)
        # who is fed first has the first window to itself; where control gets too little of a busy
        # machine, turns are longer, and a window of the other's calls may lie at either end
        during = calls_during(fleet, small, WINDOW + 1, MOST)
        assert during[big.job_id] == pytest.approx(MOST - WINDOW, abs=1.5 * WINDOW)

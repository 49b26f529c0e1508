"""`--lane auto` with real workers, and a provider whose batches stand still."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from fleet import Fleet, until

from penstock_ledger import LaneMoves, Result
from penstock_ledger.model import JobState

DOCUMENTS = 120
DEADLINE_S = 26.0
PRICE = {"usd_per_mtok_in": 100.0, "usd_per_mtok_out": 200.0, "batch_discount": 0.5, "rpm": 6_000}
CAREFUL: dict[str, Any] = {"lanes__look_s": 0.5, "lanes__moving_s": 16}


def test_what_a_batch_does_not_deliver_is_answered_before_the_deadline(tmp_path: Path) -> None:
    """The cheaper lane is tried, its batch stands still half-way, and the rest is answered in real
    time: in time, each document once, what the batch had answered at half the price, and each
    decision with its reason and figures."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start(
            "--batch-s", "2", "--batch-step-s", "0.1", "--batch-stalled-share", "1"
        )
        prices: dict[str, Any] = {
            f"providers__default__{name}": value for name, value in PRICE.items()
        }
        batch: dict[str, Any] = {
            "batch__folder": tmp_path / "packed",
            "batch__poll_first_s": 0.1,
            "batch__poll_cap_s": 0.2,
        }
        workers = [fleet.worker(16, **prices), fleet.worker(1, lane="batch", **batch, **prices)]
        control = fleet.control(**CAREFUL, **prices)
        fleet.ready(*workers)
        until(lambda: "penstock.control" in control.log.read_text(), 60, "control is ready")
        job = fleet.submit(DOCUMENTS, lane="auto", deadline_s=DEADLINE_S)
        fleet.wait_for(job, JobState.COMPLETED, 2 * DEADLINE_S)
        status = fleet.producer.status(job.job_id)
        assert (status.counts.succeeded, status.counts.dead) == (DOCUMENTS, 0)
        assert status.job.finished_at is not None
        assert status.job.finished_at <= job.created_at + DEADLINE_S
        first, rescue = LaneMoves(fleet.producer._database).of(job.job_id)
        assert (first.before, first.lane, first.reason) == (None, "batch", "chosen")
        assert "batch is tried first, though how long it takes is not known" in first.why
        assert first.figures["batch.usd"] == 0.5 * float(first.figures["api.usd"] or 0)
        assert (rescue.before, rescue.lane, rescue.reason) == ("batch", "api", "deadline")
        assert "documents a minute" in rescue.why
        assert " USD more" in rescue.why
        lanes = Counter(map(_lane_by_price, fleet.producer.results(job.job_id)))
        assert lanes["batch"] > 0, "what a batch has answered before its cancel is kept"
        assert lanes["api"] == DOCUMENTS - lanes["batch"] == fleet.provider_calls()
        report = json.loads(fleet.penstock("report", job.job_id, "--json"))
        assert [(one["before"], one["lane"], one["why"]) for one in report["lanes"]] == [
            (None, "batch", first.why),
            ("batch", "api", rescue.why),
        ]


def _lane_by_price(result: Result) -> str:
    """By what was paid for an answer."""
    full = 100.0 * (result.prompt_tokens or 0) + 200.0 * (result.completion_tokens or 0)
    return {1.0: "api", 0.5: "batch"}[round(result.cost_microusd / full, 2)]

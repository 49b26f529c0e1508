"""A batch as Gemini shows it: an operation whose metadata are the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_simulate.batches.batch import Batch
from penstock_simulate.batches.course import OVER, Status
from penstock_simulate.batches.gemini.google import timestamp

KIND = "type.googleapis.com/google.ai.generativelanguage.v1main."
STATES: Mapping[Status, str] = {
    Status.VALIDATING: "BATCH_STATE_PENDING",
    Status.FAILED: "BATCH_STATE_FAILED",
    Status.IN_PROGRESS: "BATCH_STATE_RUNNING",
    Status.FINALIZING: "BATCH_STATE_RUNNING",
    Status.CANCELLING: "BATCH_STATE_RUNNING",
    Status.COMPLETED: "BATCH_STATE_SUCCEEDED",
    Status.EXPIRED: "BATCH_STATE_EXPIRED",
    Status.CANCELLED: "BATCH_STATE_CANCELLED",
}
CODES = {Status.FAILED: 3, Status.EXPIRED: 4, Status.CANCELLED: 1}  # of google.rpc.Code
WORDS = {
    Status.EXPIRED: "The batch expired before it was done.",
    Status.CANCELLED: "The batch was cancelled.",
}


def shown(batch: Batch, now: float, output: Mapping[str, Any] | None) -> dict[str, Any]:
    """``output`` where there is one: a file of results, or the results themselves."""
    status, course = batch.course.status(now), batch.course
    moments = course.moments(now)
    over = status in OVER
    metadata: dict[str, Any] = {
        "@type": KIND + "GenerateContentBatch",
        "name": batch.id,
        "displayName": batch.tag,
        "model": f"models/{batch.model}",
        "createTime": timestamp(course.created_at),
        "updateTime": timestamp(moments[-1].at),
        "batchStats": _stats(batch, now),
        "state": STATES[status],
    }
    found: dict[str, Any] = {"name": batch.id, "metadata": metadata}
    if over:
        metadata["endTime"], found["done"] = timestamp(moments[-1].at), True
    if output is not None:
        metadata["output"] = output
        found["response"] = {"@type": KIND + "GenerateContentBatchOutput", **output}
    if status in CODES:
        found["error"] = {"code": CODES[status], "message": _why(batch, status)}
    return found


def _why(batch: Batch, status: Status) -> str:
    return batch.problems[0].message if status is Status.FAILED else WORDS[status]


def _stats(batch: Batch, now: float) -> dict[str, str]:
    """64-bit numbers are texts in Google's JSON; those that are 0 are left out."""
    counts = batch.counts(now)
    found = {
        "requestCount": counts.total,
        "successfulRequestCount": counts.good,
        "failedRequestCount": counts.bad + counts.undone,
        "pendingRequestCount": counts.total - counts.good - counts.bad - counts.undone,
    }
    return {name: str(number) for name, number in found.items() if number}

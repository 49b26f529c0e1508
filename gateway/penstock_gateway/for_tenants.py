"""What a tenant may read of its jobs: sentences of the ledger without places of this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock_gateway.ids import is_id
from penstock_ledger.model import DeadLetter, Job
from penstock_ledger.reasons import By
from penstock_producer.reporting.advice import over_http
from penstock_producer.reporting.pauses import serialize_pause

__all__ = ["dead_letter_for", "error_for", "pause_for", "shown_source", "without_places"]


def shown_source(job: Job) -> str:
    """Return where the job's documents are.

    Of an uploaded file that is the id, not where this machine keeps it.
    """
    uri = str(job.source.get("uri", ""))
    name = uri.rpartition("/")[2].partition(".")[0]
    return name if is_id("file", name) else uri


def error_for(job: Job, text: str | None) -> str:
    """Return a sentence about a job as its tenant may read it; "" where there is none."""
    return without_places(job, text or "")


def without_places(job: Job, text: str) -> str:
    """Return a sentence without places of this machine; all other words stay.

    Those may be of a provider, of a model or of the job's own documents."""
    uri, shown = str(job.source.get("uri", "")), shown_source(job)
    return text if uri == shown or not uri else text.replace(uri, shown)


def pause_for(job: Job) -> dict[str, Any] | None:
    """Return why a job is paused, and what to do about it, as its tenant may read it."""
    if job.pause is None:
        return None
    # what a provider or a person has said stays as it is
    ours = job.pause.by not in (By.PROVIDER, By.PERSON, By.STOP_LOSS)
    params = {
        name: (error_for if ours or name == "fix" else without_places)(job, value)
        if isinstance(value, str)
        else value
        for name, value in job.pause.params.items()
    }
    if isinstance(examples := params.get("examples"), list):
        params["examples"] = [
            {name: without_places(job, str(text)) for name, text in one.items()}
            for one in examples
            if isinstance(one, dict)
        ]
    pause = replace(job.pause, params=params)
    return serialize_pause(pause, lambda text: without_places(job, over_http(text)))


def dead_letter_for(job: Job, letter: DeadLetter) -> DeadLetter:
    """Return a dead letter whose last error its tenant may read."""
    return replace(letter, last_error=error_for(job, letter.last_error))

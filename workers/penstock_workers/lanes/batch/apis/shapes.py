"""Whose batch API has OpenAI's form, and where it differs: one row each, taken from what the
provider itself publishes.

The row is the provider's `profile`, which its host names where nothing else does. What no row names
is asked as OpenAI is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock_producer.job.endpoints import CHAT
from penstock_workers.lanes.batch.apis.listing import Listing
from penstock_workers.lanes.batch.provider import BatchLimits, NewBatch

TAG: Final = "penstock_batch"  # the name of the tag in `metadata`
WINDOW: Final = "24h"
LIMITS: Final = BatchLimits(requests=50_000, total_bytes=200_000_000, line_bytes=200_000_000)
BEHIND: Final = Listing(rows="data", place="after", next_page=None)
NUMBERED: Final = Listing(rows="data", place="page", next_page=None, full_page=100)


def _asked(batch: NewBatch) -> dict[str, Any]:
    return {
        "input_file_id": batch.file_id,
        "endpoint": batch.endpoint,
        "completion_window": WINDOW,
        "metadata": {TAG: batch.tag},
    }


def _asked_together(batch: NewBatch) -> dict[str, Any]:
    """It keeps no metadata."""
    return {"input_file_id": batch.file_id, "endpoint": batch.endpoint, "completion_window": WINDOW}


def _asked_mistral(batch: NewBatch) -> dict[str, Any]:
    model = {} if batch.model is None else {"model": batch.model}
    return {
        "input_files": [batch.file_id],
        "endpoint": batch.endpoint,
        **model,
        "metadata": {TAG: batch.tag},
        "timeout_hours": 24,
    }


def _shown(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    return batch


def _shown_together(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """What answers a create has the batch in `job`. One text says why a batch has failed."""
    job = batch.get("job")
    batch = job if isinstance(job, dict) else batch
    why = batch.get("error")
    return {**batch, "errors": [{"code": "failed", "message": why}]} if why else batch


def _shown_mistral(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs = batch.get("input_files")
    counts = {
        "total": batch.get("total_requests"),
        "completed": batch.get("succeeded_requests"),
        "failed": batch.get("failed_requests"),
    }
    return {
        **batch,
        "input_file_id": inputs[0] if isinstance(inputs, list) and inputs else None,
        "output_file_id": batch.get("output_file"),
        "error_file_id": batch.get("error_file"),
        "request_counts": counts if batch.get("total_requests") else None,
    }


class Shape(NamedTuple):
    """How one provider's files and batches are asked and read."""

    purpose: str = "batch"
    upload_path: str = "/v1/files"
    form: Mapping[
        str, str
    ] = {}  # fields of an upload besides; {} in a value stands for the file's name
    files_query: Mapping[str, str] = {"purpose": "batch", "order": "desc", "limit": "1000"}
    files: Listing = BEHIND
    waits_for_file: bool = False  # an upload is usable only when its status says so
    batches_path: str = "/v1/batches"
    batches_query: Mapping[str, str] = {"limit": "100"}
    batches: Listing = BEHIND
    endpoints: frozenset[str] | None = None  # that its batches may ask; None: it is not said
    bare_lines: bool = False  # a line has its id and its body, and no method and url
    asked: Callable[[NewBatch], dict[str, Any]] = _asked
    shown: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _shown
    means: Mapping[
        str, str
    ] = {}  # its words for how a batch stands, in small letters, that are not OpenAI's
    limits: BatchLimits = LIMITS
    key_header: str | None = None  # that has the key instead of Authorization


OPENAI: Final = Shape()
SHAPES: Final[Mapping[str, Shape]] = {
    # The header `api-key`, the API of the path /openai/v1, 200 MB and 50,000 requests:
    # learn.microsoft.com .../foundry/reference/rest/batches-create-batch and
    # .../openai/authoring-reference-preview. "pending", "running" and "uploaded" of a file that
    # cannot be used yet: .../rest/api/azureopenai/files.
    "azure": Shape(waits_for_file=True, key_header="api-key"),
    # As OpenAI, under /openai/v1; "The file can be up to 100 MB in size", windows "from `24h` to
    # `7d`", chat only: groq-python, its batch_create_params, and console.groq.com/docs/batch.
    "groq": Shape(
        endpoints=frozenset({CHAT}),
        limits=LIMITS._replace(total_bytes=100_000_000, line_bytes=100_000_000),
    ),
    # /files/upload as a form with `file_name`, purpose batch-api
    # (docs.together.ai/reference/upload-file); `job` around what was created, the list without a
    # frame and without pages, statuses in capitals, no metadata, no counts (together-python, its
    # resources and types of batches); lines of custom_id and body, 50,000 requests and 100 MB
    # (docs.together.ai/docs/inference/batch).
    "together": Shape(
        purpose="batch-api",
        upload_path="/v1/files/upload",
        form={"file_name": "{}", "file_type": "jsonl"},
        files_query={},
        batches_query={},
        bare_lines=True,
        asked=_asked_together,
        shown=_shown_together,
        limits=LIMITS._replace(total_bytes=100_000_000, line_bytes=100_000_000),
    ),
    # /v1/batch/jobs with its own words and fields, pages by number (mistralai/client-python,
    # docs/sdks/batchjobs and docs/sdks/files; docs.mistral.ai/capabilities/batch). How large a file
    # may be is not said beside 512 MB for files.
    "mistral": Shape(
        files_query={"purpose": "batch", "page_size": "100"},
        files=NUMBERED,
        batches_path="/v1/batch/jobs",
        batches_query={"page_size": "100"},
        batches=NUMBERED,
        bare_lines=True,
        asked=_asked_mistral,
        shown=_shown_mistral,
        means={"success": "completed", "timeout_exceeded": "expired"},
    ),
}
"""By the names of metering profiles."""

"""Providers whose batch API has OpenAI's form with differences, played where `--like` names them.

Nothing of them was compared with the providers themselves: it follows what they publish. Azure:
learn.microsoft.com .../foundry/reference/rest/batches-create-batch. Groq: groq-python, its
batch_create_params. Together: docs.together.ai /reference/upload-file and together-python, its
resources and types of batches. Mistral: mistralai/client-python, docs/sdks/batchjobs and
docs/sdks/files. xAI: docs.x.ai/developers/advanced-api-usage/batch-api, xai-org/xai-proto
(batch.proto) and vercel/ai, its provider of xAI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from penstock_simulate.answers import refusals
from penstock_simulate.answers.calls import CHAT
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.batches import sent
from penstock_simulate.batches.batch import Refused
from penstock_simulate.batches.gemini import CANCELLED, rpc_code
from penstock_simulate.batches.intake import Asked, renamed
from penstock_simulate.batches.openai_lines import MESSAGES, OpenAIWording
from penstock_simulate.batches.results import Undone
from penstock_simulate.reply import Usage

Shown = dict[str, Any]
MISTRAL_PAGE = 100
MISTRAL = {
    "validating": "QUEUED",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelling": "CANCELLATION_REQUESTED",
    "cancelled": "CANCELLED",
}


def _as_it_is(shown: Shown) -> Shown:
    return shown


def _behind(
    names: Sequence[str], query: Mapping[str, str], default: int, most: int
) -> tuple[Sequence[str], bool]:
    """Return the names that come behind the one that `after` names."""
    return sent.after(names, query.get("after"), sent.limit_of(query, default, most))


def _all(
    names: Sequence[str], query: Mapping[str, str], default: int, most: int
) -> tuple[Sequence[str], bool]:
    return names, False


def _numbered(
    names: Sequence[str], query: Mapping[str, str], default: int, most: int
) -> tuple[Sequence[str], bool]:
    number, size = int(query.get("page", "0")), int(query.get("page_size", str(MISTRAL_PAGE)))
    return names[number * size : (number + 1) * size], False


def _framed(rows: list[Shown], more: bool) -> Any:
    return {"object": "list"} | sent.listed(rows, more=more)


def _in_data(rows: list[Shown], more: bool) -> Any:
    return {"object": "list", "data": rows}


def _asked_of_together(given: Shown) -> Shown:
    """Return what is asked of Together.

    `completion_window` may be left out; metadata are not known."""
    return {
        "completion_window": "24h",
        **{name: given[name] for name in given if name != "metadata"},
    }


def _shown_by_together(shown: Shown) -> Shown:
    counts = shown["request_counts"]
    done, problems = counts["completed"] + counts["failed"], (shown["errors"] or {}).get("data", ())
    return {
        "id": shown["id"],
        "user_id": "user_simulated",
        "input_file_id": shown["input_file_id"],
        "file_size_bytes": 0,
        "status": shown["status"].upper().replace("CANCELLING", "CANCELING"),
        "job_deadline": _in_words(shown["expires_at"]),
        "created_at": _in_words(shown["created_at"]),
        "endpoint": shown["endpoint"],
        "progress": 100 * done / counts["total"] if counts["total"] else 0.0,
        "model_id": shown["model"],
        "output_file_id": shown["output_file_id"],
        "error_file_id": shown["error_file_id"],
        "error": "; ".join(problem["message"] for problem in problems) or None,
    }


def _asked_of_mistral(given: Shown) -> Shown:
    inputs = given.get("input_files")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(given.get("model"), str):
        raise Refused(
            refusals.invalid(
                "This simulator takes one of input_files, and needs a model.", status=422
            )
        )
    asked: Shown = {
        name: given[name] for name in ("endpoint", "metadata", "model") if name in given
    }
    return {**asked, "completion_window": "24h", "input_file_id": inputs[0]}


def _shown_by_mistral(shown: Shown) -> Shown:
    counts, problems = shown["request_counts"], (shown["errors"] or {}).get("data", ())
    return {
        "id": shown["id"],
        "object": "batch",
        "input_files": [shown["input_file_id"]],
        "endpoint": shown["endpoint"],
        "model": shown["model"],
        "metadata": shown["metadata"],
        "status": MISTRAL[shown["status"]],
        "created_at": shown["created_at"],
        "output_file": shown["output_file_id"],
        "error_file": shown["error_file_id"],
        "errors": [{"message": problem["message"], "count": 1} for problem in problems],
        "total_requests": counts["total"],
        "completed_requests": counts["completed"] + counts["failed"],
        "succeeded_requests": counts["completed"],
        "failed_requests": counts["failed"],
    }


def _asked_of_xai(given: Shown) -> Shown:
    """Return what is asked of xAI: a name and a file, whose lines say where they go."""
    if not isinstance(given.get("name"), str):
        raise Refused(refusals.invalid("Missing required parameter: 'name'.", "name", status=422))
    return {
        "completion_window": "24h",
        "endpoint": CHAT,
        "metadata": {"name": given["name"]},
        "input_file_id": given.get("input_file_id"),
    }


def _shown_by_xai(shown: Shown) -> Shown:
    """Show counts instead of a status, and no file of results."""
    status, problems = shown["status"], (shown["errors"] or {}).get("data", ())
    counts = (
        dict.fromkeys(("total", "completed", "failed"), 0) if problems else shown["request_counts"]
    )
    total, good, bad = counts["total"], counts["completed"], counts["failed"]
    is_over = status in ("completed", "cancelled", "failed")
    ended_at = shown["cancelled_at"] or shown["failed_at"]
    return {
        "batch_id": shown["id"],
        "name": (shown["metadata"] or {}).get("name"),
        "create_time": _in_words(shown["created_at"]),
        "expire_time": _in_words(shown["expired_at"] or shown["expires_at"]),
        "create_api_key_id": "simulated",
        "cancel_time": None if ended_at is None else _in_words(ended_at),
        "cancel_by_xai_message": "; ".join(problem["message"] for problem in problems) or None,
        "state": {
            "num_requests": total,
            "num_pending": 0 if is_over or not total else max(total - good, 1),
            "num_success": good,
            "num_error": bad if status == "completed" else 0,
            "num_cancelled": bad if status == "cancelled" else 0,
        },
    }


def _with_token(
    names: Sequence[str], query: Mapping[str, str], default: int, most: int
) -> tuple[Sequence[str], bool]:
    return sent.after(names, query.get("pagination_token"), sent.limit_of(query, default, most))


def _tokened(field: str, ident: str) -> Callable[[list[Shown], bool], Any]:
    """Return what frames a page whose token is the id of its last row."""
    return lambda rows, more: {
        field: rows,
        "pagination_token": rows[-1][ident] if more else None,
    }


class XaiWording(OpenAIWording):
    """Results in one list: a chat's answer or an error for each request that was begun."""

    apart = False

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
        line, usage = super().answered(asked, request_id)
        body = orjson.loads(line)["response"]["body"]
        return _result(asked, {"response": {"chat_get_completion": body}}), usage

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes:
        code = rpc_code(refusals.google_status(refusal.status))
        return _result(asked, {"error": {"code": code, "message": refusal.message}})

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        code = CANCELLED if why is Undone.CANCELLED else rpc_code("DEADLINE_EXCEEDED")
        return _result(asked, {"error": {"code": code, "message": MESSAGES[why]}})

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        return renamed(line, "batch_request_id")


def _result(asked: Asked, outcome: Shown) -> bytes:
    return orjson.dumps({"batch_request_id": asked.custom_id, "batch_result": outcome})


def _in_words(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat().replace("+00:00", "Z")


class Relative(NamedTuple):
    """The differences of one provider from OpenAI."""

    roots: tuple[str, ...] = ("/v1",)
    upload: str = "/files"
    needed: tuple[str, ...] = ()  # fields of an upload besides the file and its purpose
    purpose: str = "batch"
    batches: str = "/batches"
    cancel: str = "/cancel"  # behind the path of a batch
    results: bool = False  # are pages of a list, and no files
    wording: type[OpenAIWording] = OpenAIWording
    bare_lines: bool = False  # of an id and a body
    key_header: str | None = None  # instead of Authorization
    # an upload is pending for `--batch-step-s`, and no batch is made of it until then
    checks_files: bool = False
    asked: Callable[[Shown], Shown] = _as_it_is  # what a create was given, as OpenAI is given it
    shown: Callable[[Shown], Shown] = _as_it_is
    made_in: str | None = None  # the field of a create's answer with the batch
    page: Callable[[Sequence[str], Mapping[str, str], int, int], tuple[Sequence[str], bool]] = (
        _behind
    )
    frame: Callable[[list[Shown], bool], Any] = _framed  # of a page of batches
    files_frame: Callable[[list[Shown], bool], Any] = _framed


OPENAI = Relative()
RELATIVES: Mapping[str, Relative] = {
    "azure": Relative(roots=("/v1", "/openai/v1"), key_header="api-key", checks_files=True),
    "groq": Relative(roots=("/v1", "/openai/v1")),
    "together": Relative(
        upload="/files/upload",
        needed=("file_name",),
        purpose="batch-api",
        bare_lines=True,
        asked=_asked_of_together,
        shown=_shown_by_together,
        made_in="job",
        page=_all,
        frame=lambda rows, _: rows,
        files_frame=_in_data,
    ),
    "mistral": Relative(
        batches="/batch/jobs",
        bare_lines=True,
        asked=_asked_of_mistral,
        shown=_shown_by_mistral,
        page=_numbered,
        frame=_in_data,
        files_frame=_in_data,
    ),
    "xai": Relative(
        cancel=":cancel",
        results=True,
        wording=XaiWording,
        asked=_asked_of_xai,
        shown=_shown_by_xai,
        page=_with_token,
        frame=_tokened("batches", "batch_id"),
        files_frame=_tokened("data", "id"),
    ),
}

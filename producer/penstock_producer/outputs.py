"""A job's outcomes as files: OpenAI Batch output lines and error lines, in flat memory.

They are streamed from the ledger.

Lines are in the ledger's order, which is not that of the source; `custom_id` says whose they are.
Writing them again gives the same bytes for the same outcomes. A folder and a bucket get both files,
empty or not: a missing file and a job without dead letters must not look alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from penstock_ledger import MadeWith
from penstock_ledger.model import DeadLetter, ItemKey, Result
from penstock_producer.storage import Writer, discarded_on_error, open_sink

__all__ = [
    "ERRORS_NAME",
    "OUTPUT_NAME",
    "error_line",
    "on_one_line",
    "output_line",
    "probe_sink",
    "provenance_line",
    "write_errors",
    "write_outputs",
]

OUTPUT_NAME = "output.jsonl"
ERRORS_NAME = "errors.jsonl"

# Reasons for which OpenAI's Batch API has a code of its own; of the others, the reason is the code.
_OPENAI_CODES: Mapping[str, str] = {
    "cancelled": "batch_cancelled",
    "deadline_exceeded": "batch_expired",
    "timeout": "request_timeout",
}


class Outcomes(Protocol):
    """The part of the ledger's OutcomeStore that is needed: visible outcomes, page by page."""

    def results(self, job_id: str) -> Iterator[Result]: ...

    def dead_letters(self, job_id: str) -> Iterator[DeadLetter]: ...


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The places of the files, and the number of their lines."""

    output: str
    errors: str
    results: int
    dead_letters: int


def write_outputs(
    outcomes: Outcomes, job_id: str, destination: str | Path, *, s3_endpoint_url: str | None = None
) -> WrittenFiles:
    """Write `output.jsonl` and `errors.jsonl` into a folder or a prefix of a bucket.

    Raises SinkError.

    Both files appear when both are complete; until then, and after a failure, what was there before
    stays.
    """
    sink = open_sink(destination, s3_endpoint_url=s3_endpoint_url)
    with (
        discarded_on_error(sink.create(OUTPUT_NAME)) as output,
        discarded_on_error(sink.create(ERRORS_NAME)) as errors,
    ):
        results = _write_all(output, map(output_line, outcomes.results(job_id)))
        letters = _write_all(errors, map(error_line, outcomes.dead_letters(job_id)))
        output.finish()
        errors.finish()
        return WrittenFiles(output.publish(), errors.publish(), results, letters)


def write_errors(
    outcomes: Outcomes, job_id: str, destination: str | Path, *, s3_endpoint_url: str | None = None
) -> int:
    """Write `errors.jsonl` alone, as ``write_outputs`` does; returns how many lines it has.

    Raises SinkError."""
    sink = open_sink(destination, s3_endpoint_url=s3_endpoint_url)
    with discarded_on_error(sink.create(ERRORS_NAME)) as writer:
        letters = _write_all(writer, map(error_line, outcomes.dead_letters(job_id)))
        writer.finish()
        writer.publish()
        return letters


def probe_sink(destination: str | Path, *, s3_endpoint_url: str | None = None) -> None:
    """Find out now whether outputs can be written there when the job ends.

    Raises SinkError saying what to do."""
    open_sink(destination, s3_endpoint_url=s3_endpoint_url).probe()


def output_line(result: Result) -> bytes:
    """Return one line of `output.jsonl`, newline included.

    One that no call was made for says so under `penstock`.
    """
    response = _response(
        result.status_code, result.request_id, orjson.Fragment(on_one_line(result.body))
    )
    if result.reason is None:
        return _line(result.key, response=response, error=None)
    return _line(
        result.key, response=response, error=None, penstock={"cached": True, "from": result.reason}
    )


def provenance_line(result: Result, made_with: Sequence[MadeWith], spec_digest: str) -> bytes:
    """Return the output line with what made the result, under `penstock`.

    That is a list of one combination, of more where the fleet was changed at that moment, and of
    none for an answer that another request was given.
    """
    more: dict[str, Any] = {"spec_digest": spec_digest, "model": result.model}
    if result.reason is not None:
        more |= {"cached": True, "from": result.reason}
    more["made_with"] = [] if result.reason is not None else [one._asdict() for one in made_with]
    response = _response(
        result.status_code, result.request_id, orjson.Fragment(on_one_line(result.body))
    )
    return _line(result.key, response=response, error=None, penstock=more)


def error_line(letter: DeadLetter) -> bytes:
    """Return one line of `errors.jsonl`, newline included.

    As at OpenAI a request that the provider refused has `error` null and the refusal in
    `response.body.error`; whatever never got such an answer has `response` null and `error.code`.
    What their format has no field for is under `penstock`.
    """
    more: dict[str, Any] = {
        "reason": letter.reason,
        "attempts": letter.attempts,
        "generation": letter.key.generation,
    }
    if letter.line is not None:
        more["line"] = letter.line
    if letter.status_code is not None and letter.status_code >= 400:
        response = _response(letter.status_code, None, _refusal(letter))
        return _line(letter.key, response=response, error=None, penstock=more)
    error = {"code": _OPENAI_CODES.get(letter.reason, letter.reason), "message": letter.last_error}
    return _line(letter.key, response=None, error=error, penstock=more)


def _write_all(writer: Writer, lines: Iterable[bytes]) -> int:
    number = 0
    for line in lines:
        writer.write(line)
        number += 1
    return number


def _line(key: ItemKey, **fields: Any) -> bytes:
    line = {"id": _request_id(key), "custom_id": key.doc_id, **fields}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _request_id(key: ItemKey) -> str:
    """Return an id of the item's request; the same item always has the same one."""
    named = f"{key.job_id}\0{key.generation}\0{key.doc_id}".encode()
    return "batch_req_" + hashlib.sha256(named).hexdigest()[:24]


def _response(status_code: int, request_id: str | None, body: Any) -> dict[str, Any]:
    return {"status_code": status_code, "request_id": request_id, "body": body}


def on_one_line(body: bytes) -> bytes:
    """Return JSON without line ends.

    It has them only between its tokens, where a blank does as well."""
    if b"\n" in body or b"\r" in body:
        return body.replace(b"\n", b" ").replace(b"\r", b" ")
    return body


def _refusal(letter: DeadLetter) -> Any:
    """Return the provider's own error body.

    One is made from what is known where only an excerpt, no JSON, or JSON too deep to be written
    again was kept.
    """
    try:
        body = orjson.loads(letter.response or b"")
        if isinstance(body, dict) and "error" in body:
            return orjson.Fragment(orjson.dumps(body))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        pass
    return {
        "error": {"message": letter.last_error, "type": None, "param": None, "code": letter.reason}
    }

"""Gemini's batches: a file of requests for one model, and a file of responses.

Times and counts are Google's operations.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec
import orjson
from yarl import URL

from penstock_producer.job.endpoints import GENERATE
from penstock_workers.lanes.batch.apis.http import BatchHttp, Listing, pages
from penstock_workers.lanes.batch.apis.output_lines import Line, Output, output_lines
from penstock_workers.lanes.batch.apis.provider import (
    AccountStopped,
    BadLine,
    BatchAnswer,
    BatchGone,
    BatchLimits,
    BatchRefused,
    BatchSeen,
    Counts,
    LineProblem,
    NewBatch,
    UnreadableLine,
    within,
)
from penstock_workers.lanes.batch.apis.reading import (
    LineReader,
    as_it_came,
    counted,
    identifier,
    mapping,
    request_object,
    rpc_status,
    said,
)

CANCELLED: Final = 1  # of google.rpc.Code


class _Answer(msgspec.Struct):
    key: str
    response: msgspec.Raw = msgspec.Raw(b"")
    error: Any = None
    status: Any = None  # an error, too, in outputs of older batches


_answers: Final = LineReader(_Answer)


def write_line(custom_id: str, endpoint: str, body: bytes, most_bytes: int) -> bytes:
    """Return a request as a line; raise BadLine and LineTooLong.

    The model is the batch's: a request that names it says so only to Penstock."""
    if endpoint != GENERATE:
        raise BadLine(
            f"Gemini's batches take requests to {GENERATE}, and this one is for {endpoint}"
        )
    request = request_object(body)
    request.pop("model", None)
    line = orjson.dumps({"key": custom_id, "request": request}) + b"\n"
    return within(line, most_bytes)


def read_line(output: str, line: Line) -> BatchAnswer | UnreadableLine:
    try:
        answer = _answers.read(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return UnreadableLine(output, line.number, f"no response of a batch: {said(str(fault))}")
    if identifier(answer.key) is None:
        return UnreadableLine(output, line.number, "its key is empty or no usable name")
    response = as_it_came(answer.response, line.text)
    if response.startswith(b"{"):
        return BatchAnswer(answer.key, 200, response)
    error = mapping(answer.error) or mapping(answer.status)
    if error.get("code") == CANCELLED:
        return BatchAnswer(
            answer.key, None, b"", error="batch_cancelled", message=said(error.get("message"))
        )
    if not error:
        return UnreadableLine(output, line.number, "it has neither a response nor an error")
    return BatchAnswer(
        answer.key,
        rpc_status(error.get("code")),
        orjson.dumps({"error": error}),
        error=said(error.get("status")) or "error",
        message=said(error.get("message")),
    )


LIMITS: Final = BatchLimits(
    requests=100_000,  # Google documents none: this bounds the memory for one batch's ids
    total_bytes=2_000_000_000,
    line_bytes=20_000_000,  # as one request in real time
)
VERSION: Final = "/v1beta"
FILES: Final = Listing(rows="files", place="pageToken", next_page="nextPageToken")
BATCHES: Final = Listing(rows="operations", place="pageToken", next_page="nextPageToken")
ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"})
_NAME: Final = re.compile(r"(?:files|batches)/[A-Za-z0-9._-]{1,200}")


class GeminiBatches:
    """Implements ``BatchProvider``."""

    limits = LIMITS

    def __init__(self, http: BatchHttp) -> None:
        self._http = http

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        return write_line(custom_id, endpoint, body, self.limits.line_bytes)

    async def upload(self, batch: NewBatch) -> str | None:
        """Upload the file to the address that Google gives for its bytes.

        The key goes with them only where that address is Google's own."""
        size = batch.path.stat().st_size
        begun = await self._http.heard(
            "POST",
            f"/upload{VERSION}/files",
            data=b'{"file":{"display_name":"%s"}}' % batch.tag.encode(),
            headers={
                "Content-Type": "application/json",
                "X-Goog-Upload-Protocol": "resumable",
                "X-Goog-Upload-Command": "start",
                "X-Goog-Upload-Header-Content-Length": str(size),
                "X-Goog-Upload-Header-Content-Type": "application/jsonl",
            },
        )
        address = begun.headers.get("X-Goog-Upload-URL", "")
        if not self._http.account.is_own(address):
            who = self._http.account.name
            raise AccountStopped(
                f"provider {who}: the address for an upload is another server's, and the key goes "
                "to none"
            )
        headers = {"X-Goog-Upload-Offset": "0", "X-Goog-Upload-Command": "upload, finalize"}
        with batch.path.open("rb") as file:
            heard = await self._http.heard(
                "POST", URL(address, encoded=True), data=file, size=size, headers=headers, once=True
            )
        name = _name(mapping(self._http.object_of(heard, once=True).get("file")).get("name"))
        if name is None:
            raise self._http.unusable("the answer to an upload has no file name", once=True)
        return name

    async def find_upload(self, tag: str) -> str | None:
        async with contextlib.aclosing(
            pages(self._http, FILES, f"{VERSION}/files", {"pageSize": "100"})
        ) as found:
            async for page in found:
                for file in page:
                    if file.get("displayName") == tag and file.get("state") != "FAILED":
                        return _name(file.get("name"))
        return None

    async def create(self, batch: NewBatch) -> BatchSeen:
        if not batch.model:
            raise BatchRefused(
                0, "missing_model", "a batch of Gemini is for one model, and the job names none"
            )
        model = quote(batch.model.removeprefix("models/"), safe="")
        asked = {"batch": {"display_name": batch.tag, "input_config": {"file_name": batch.file_id}}}
        path = f"{VERSION}/models/{model}:batchGenerateContent"
        made = self._seen(
            await self._http.call("POST", path, payload=asked, once=True, one=True), once=True
        )
        # an end is believed where it is looked at: this answer names no output
        return made._replace(ended=False)

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        async with contextlib.aclosing(
            pages(self._http, BATCHES, f"{VERSION}/batches", {"pageSize": "100"})
        ) as found:
            async for page in found:
                for operation in page:
                    if mapping(operation.get("metadata")).get("displayName") == tag:
                        return self._seen(operation, once=True)
        return None

    async def look(self, batch_id: str) -> BatchSeen:
        return self._seen(await self._http.call("GET", self._path(batch_id), one=True), once=False)

    async def answers(self, seen: BatchSeen) -> AsyncGenerator[BatchAnswer | UnreadableLine, None]:
        for name in seen.outputs:
            path = f"/download{VERSION}/{name}:download"
            output = Output(name, path, self.limits.requests, {"alt": "media"}, id_field="key")
            async with contextlib.aclosing(output_lines(self._http, output)) as lines:
                async for line in lines:
                    yield line if isinstance(line, UnreadableLine) else read_line(name, line)

    async def cancel(self, batch_id: str) -> BatchSeen:
        """Cancel a batch.

        Google answers with nothing; one that has ended refuses. Both ways it is shown as it is."""
        try:
            await self._http.call("POST", self._path(batch_id) + ":cancel", payload={}, one=True)
        except BatchGone:
            raise
        except BatchRefused:
            pass
        return await self.look(batch_id)

    async def delete(self, seen: BatchSeen) -> None:
        for name in filter(None, (seen.file_id, *seen.outputs)):
            with contextlib.suppress(BatchGone):
                await self._http.call("DELETE", self._path(name), one=True)

    async def close(self) -> None:
        await self._http.close()

    def _path(self, name: str) -> str:
        if _name(name) is None:
            raise BatchGone(
                0, "no_such_name", f"Gemini has no batch or file of the name {said(name)!r}"
            )
        return f"{VERSION}/{name}"

    def _seen(self, operation: Mapping[str, Any], *, once: bool) -> BatchSeen:
        metadata = mapping(operation.get("metadata"))
        batch_id, status = _name(operation.get("name")), identifier(metadata.get("state"))
        if batch_id is None or status is None:
            raise self._http.unusable("the answer about a batch has no name or no state", once=once)
        end = status.rpartition("_")[2]
        stats = mapping(metadata.get("batchStats"))
        done = mapping(operation.get("response")) or mapping(metadata.get("output"))
        output = _name(done.get("responsesFile"))
        return BatchSeen(
            batch_id,
            status,
            ended=end in ENDED,
            counts=_counts(stats, is_given_out=end != "EXPIRED" or output is not None)
            if stats
            else None,
            expired=end == "EXPIRED",
            cancelled=end == "CANCELLED",
            problems=_problems(operation) if end == "FAILED" and output is None else (),
            outputs=() if output is None else (output,),
            file_id=_name(mapping(metadata.get("inputConfig")).get("fileName")),
        )


def _counts(stats: Mapping[str, Any], *, is_given_out: bool) -> Counts:
    """Return the counts; of a batch that has expired Gemini gives nothing out.

    Whatever it has counted, none of that is waited for."""
    names = ("requestCount", "successfulRequestCount", "failedRequestCount")
    total, succeeded, failed = (counted(stats.get(name)) for name in names)
    return Counts(total, succeeded, failed) if is_given_out else Counts(total, 0, total)


def _name(value: object) -> str | None:
    """Return a resource name, in which nothing can lead an address elsewhere."""
    return (
        value if isinstance(value, str) and _NAME.fullmatch(value) and ".." not in value else None
    )


def _problems(operation: Mapping[str, Any]) -> tuple[LineProblem, ...]:
    error = mapping(operation.get("error"))
    message = said(error.get("message")) or "the provider failed the batch and did not say why"
    return (LineProblem(said(error.get("status")) or "failed", message, None),)

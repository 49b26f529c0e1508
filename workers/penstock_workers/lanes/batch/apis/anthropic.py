"""Anthropic's Message Batches: no files, no metadata, no counts while a batch runs.

A batch is known by its custom ids alone: each begins with the last characters of its tag. They can
be read only when it has ended. So after a create whose answer was lost, `find` says for certain
"this one" or "none" as soon as every batch of that minute has ended (mostly within an hour, 24 h at
most), and is Unclear before. Nothing is sent twice for it.

Requests and results of Anthropic's Message Batches, line by line.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import orjson

from penstock_ledger.lone_surrogates import parse_json
from penstock_producer.job.endpoints import MESSAGES
from penstock_workers.lanes.batch.apis.http import BatchHttp, Listing, pages
from penstock_workers.lanes.batch.apis.output_lines import Line, Output, output_lines
from penstock_workers.lanes.batch.apis.provider import (
    BadLine,
    BatchAnswer,
    BatchGone,
    BatchLimits,
    BatchRefused,
    BatchSeen,
    Counts,
    NewBatch,
    Unclear,
    UnreadableLine,
    within,
)
from penstock_workers.lanes.batch.apis.reading import (
    LineReader,
    as_it_came,
    counted,
    identifier,
    mapping,
    request_body,
    said,
)

PREFIX: Final = b'{"custom_id":"'  # what each packed line begins with: the mark is put behind it
MARK_CHARS: Final = 8
STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Of an errored request, which has no status in a batch: what it would have had in real time."""
ENDS: Final = {"canceled": "batch_cancelled", "expired": "batch_expired"}


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


class Read(NamedTuple):
    """An answer, and the mark of the batch that stood before its custom id; "" for none."""

    mark: str
    answer: BatchAnswer


_lines: Final = LineReader(_Line)


def write_line(custom_id: str, endpoint: str, body: bytes, limits: BatchLimits) -> bytes:
    """Return a request as a line; raise BadLine and LineTooLong."""
    if endpoint != MESSAGES:
        raise BadLine(
            f"Anthropic's batches take requests to {MESSAGES}, and this one is for {endpoint}"
        )
    if not 0 < len(custom_id) <= limits.id_chars:
        raise BadLine(
            f"the custom id has {len(custom_id)} characters, and may have 1 to {limits.id_chars}"
        )
    line = b"".join((PREFIX, custom_id.encode(), b'","params":', request_body(body), b"}\n"))
    return within(line, limits.line_bytes)


def read_line(output: str, line: Line) -> Read | UnreadableLine:
    try:
        found = _lines.read(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return UnreadableLine(output, line.number, f"no result of a batch: {said(str(error))}")
    mark, custom_id = parted(found.custom_id)
    if identifier(custom_id) is None:
        return UnreadableLine(output, line.number, "its custom_id is empty or no usable name")
    try:
        answer = _answer(custom_id, found.result, line.text)
    except orjson.JSONDecodeError as error:
        return UnreadableLine(output, line.number, f"its error cannot be read: {error}")
    if answer is None:
        return UnreadableLine(
            output,
            line.number,
            f"a result of the type {said(found.result.type)!r}, or without its content",
        )
    return Read(mark, answer)


def parted(marked: str) -> tuple[str, str]:
    """Return the mark of the batch, and the custom id behind it."""
    mark, hyphen, custom_id = marked.partition("-")
    return (mark, custom_id) if hyphen and len(mark) == MARK_CHARS else ("", marked)


def _answer(custom_id: str, result: _Result, text: bytes) -> BatchAnswer | None:
    message, error = as_it_came(result.message, text), as_it_came(result.error, text)
    if result.type == "succeeded" and message.startswith(b"{"):
        return BatchAnswer(custom_id, 200, message)
    if result.type == "errored" and error.startswith(b"{"):
        return _errored(custom_id, error)
    end = ENDS.get(result.type)
    return None if end is None else BatchAnswer(custom_id, None, b"", error=end)


def _errored(custom_id: str, body: bytes) -> BatchAnswer:
    envelope = parse_json(body)
    inner = mapping(envelope.get("error"))
    code = said(inner.get("type")) or "api_error"
    status = STATUSES.get(code, 500)
    return BatchAnswer(
        custom_id,
        status,
        body,
        identifier(envelope.get("request_id")),
        code,
        said(inner.get("message")),
    )


LIMITS: Final = BatchLimits(
    requests=100_000,
    total_bytes=255_000_000,  # 256 MB, less what the frame and the marks take
    line_bytes=32_000_000,  # as one request to /v1/messages
    id_chars=64 - MARK_CHARS - 1,
)
PATH: Final = "/v1/messages/batches"
LISTING: Final = Listing(rows="data", place="after_id", next_page=None)
PIECE_BYTES: Final = 1024 * 1024  # of the packed file, in memory at once
CREATE_MAY_TAKE_S: Final = 6_000.0  # longer than any upload of 256 MB is waited for
CLOCKS_APART_S: Final = 600.0


class AnthropicBatches:
    """Implements ``BatchProvider``."""

    limits = LIMITS

    def __init__(self, http: BatchHttp) -> None:
        self._http = http

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        return write_line(custom_id, endpoint, body, self.limits)

    async def upload(self, batch: NewBatch) -> str | None:
        return None

    async def find_upload(self, tag: str) -> str | None:
        return None

    async def create(self, batch: NewBatch) -> BatchSeen:
        mark = _mark(batch.tag)
        size = await asyncio.to_thread(_size, batch.path)
        headers = {"Content-Type": "application/json", "Content-Length": str(size)}
        body = _requests(batch.path, mark)
        heard = await self._http.heard(
            "POST", PATH, data=body, size=size, headers=headers, once=True
        )
        return self._seen(self._http.object_of(heard, once=True), once=True)

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        undecided = []
        first, last = since - CLOCKS_APART_S, since + CREATE_MAY_TAKE_S + CLOCKS_APART_S
        async with contextlib.aclosing(pages(self._http, LISTING, PATH, {"limit": "100"})) as found:
            async for page in found:
                times = [_unix(batch.get("created_at")) for batch in page]
                for batch, time in zip(page, times, strict=True):
                    if time is not None and not first <= time <= last:
                        continue
                    seen = self._seen(batch, once=True)
                    mark = await self._mark_of(seen)
                    if mark == _mark(tag):
                        return seen
                    if mark is None:
                        undecided.append(seen.batch_id)
                if any(time is not None and time < first for time in times):
                    break  # the list goes from new to old
        if undecided:
            raise Unclear(
                f"provider {self._http.account.name}: whether one of {len(undecided)} batches "
                f"({', '.join(undecided[:3])}, …) is the one whose creation was not confirmed can "
                "be seen when they have ended"
            )
        return None

    async def look(self, batch_id: str) -> BatchSeen:
        return self._seen(await self._http.call("GET", _path(batch_id), one=True), once=False)

    async def answers(self, seen: BatchSeen) -> AsyncGenerator[BatchAnswer | UnreadableLine, None]:
        for batch_id in seen.outputs:
            async with contextlib.aclosing(
                output_lines(self._http, self._output(batch_id))
            ) as lines:
                async for line in lines:
                    if isinstance(line, UnreadableLine):
                        named = line.custom_id
                        yield line if named is None else line._replace(custom_id=parted(named)[1])
                        continue
                    read = read_line(batch_id, line)
                    yield read if isinstance(read, UnreadableLine) else read.answer

    async def cancel(self, batch_id: str) -> BatchSeen:
        """Cancel a batch; one that has ended refuses, and is shown as it is."""
        try:
            batch = await self._http.call("POST", _path(batch_id) + "/cancel", one=True)
        except BatchGone:
            raise
        except BatchRefused:
            return await self.look(batch_id)
        return self._seen(batch, once=False)

    async def delete(self, seen: BatchSeen) -> None:
        with contextlib.suppress(BatchGone):
            await self._http.call("DELETE", _path(seen.batch_id), one=True)

    async def close(self) -> None:
        await self._http.close()

    def _output(self, batch_id: str) -> Output:
        """Return where the results are, whatever `results_url` says.

        An address in an answer could name another host, and the key goes to none."""
        return Output(batch_id, _path(batch_id) + "/results", self.limits.requests, ranges=False)

    async def _mark_of(self, seen: BatchSeen) -> str | None:
        """Return what its custom ids begin with; None where that cannot be seen yet.

        "" for a batch of another program."""
        if not seen.outputs:
            return None
        async with contextlib.aclosing(
            output_lines(self._http, self._output(seen.batch_id))
        ) as lines:
            async for line in lines:
                read = line if isinstance(line, UnreadableLine) else read_line(seen.batch_id, line)
                if not isinstance(read, UnreadableLine):
                    return read.mark
        return ""

    def _seen(self, batch: Mapping[str, Any], *, once: bool) -> BatchSeen:
        batch_id, status = identifier(batch.get("id")), identifier(batch.get("processing_status"))
        if batch_id is None or status is None:
            raise self._http.unusable(
                "the answer about a batch has no id or no processing_status", once=once
            )
        ended = status == "ended"
        counts = mapping(batch.get("request_counts"))
        by_end = {
            name: counted(counts.get(name))
            for name in ("succeeded", "errored", "canceled", "expired")
        }
        failed = sum(by_end.values()) - by_end["succeeded"]
        return BatchSeen(
            batch_id,
            status,
            ended,
            Counts(by_end["succeeded"] + failed, by_end["succeeded"], failed)
            if ended and counts
            else None,
            expired=ended and by_end["expired"] > 0,
            cancelled=ended and by_end["canceled"] > 0,
            outputs=(batch_id,) if ended and batch.get("results_url") else (),
        )


def _mark(tag: str) -> str:
    """Return the last letters and digits of a tag: the first ones of an id may be the time."""
    return re.sub(r"[^A-Za-z0-9]", "", tag)[-MARK_CHARS:].rjust(MARK_CHARS, "0")


def _path(batch_id: str) -> str:
    return f"{PATH}/{quote(batch_id, safe='')}"


def _unix(time: object) -> float | None:
    """Return the Unix time of an RFC 3339 time."""
    try:
        return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else None
    except (ValueError, OverflowError):
        return None


HEAD: Final = b'{"requests":['
TAIL: Final = b"]}"


def _size(path: Path) -> int:
    """Return the size of what `_requests` sends.

    That has a mark and its hyphen for each line, and a comma in place of each line feed but the
    last."""
    size = lines = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            size += len(piece)
            lines += piece.count(b"\n")
    return len(HEAD) + size + lines * (MARK_CHARS + 1) - 1 + len(TAIL)


async def _requests(path: Path, mark: str) -> AsyncGenerator[bytes, None]:
    head = PREFIX + mark.encode() + b"-"
    begin = HEAD
    with path.open("rb") as file:
        while lines := await asyncio.to_thread(file.readlines, PIECE_BYTES):
            yield begin + b",".join(head + line[len(PREFIX) : -1] for line in lines)
            begin = b","
    yield TAIL

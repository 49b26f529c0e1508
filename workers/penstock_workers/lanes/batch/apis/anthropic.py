"""Anthropic's Message Batches: no files, no metadata, no counts while a batch runs.

A batch is known by its custom ids alone: each begins with the last characters of its tag. They can
be read only when it has ended. So after a create whose answer was lost, `find` says for certain
"this one" or "none" as soon as every batch of that minute has ended (mostly within an hour, 24 h at
most), and is Unclear before. Nothing is sent twice for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from penstock_workers.lanes.batch.apis.anthropic_lines import (
    MARK_CHARS,
    PREFIX,
    parted,
    read_line,
    write_line,
)
from penstock_workers.lanes.batch.apis.http import BatchHttp
from penstock_workers.lanes.batch.apis.listing import Listing, pages
from penstock_workers.lanes.batch.apis.output_lines import Output, output_lines
from penstock_workers.lanes.batch.apis.reading import counted, identifier, mapping
from penstock_workers.lanes.batch.provider import (
    BatchAnswer,
    BatchGone,
    BatchLimits,
    BatchRefused,
    BatchSeen,
    Counts,
    NewBatch,
    Unclear,
    UnreadableLine,
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
        """One that has ended refuses: it is shown as it is."""
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
        """Not `results_url`: an address in an answer could name another host, and the key goes to
        none."""
        return Output(batch_id, _path(batch_id) + "/results", self.limits.requests, ranges=False)

    async def _mark_of(self, seen: BatchSeen) -> str | None:
        """What its custom ids begin with; "" for a batch of another program, None where it cannot
        be seen yet."""
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
    """The last letters and digits of a tag: the first ones of an id may be the time."""
    return re.sub(r"[^A-Za-z0-9]", "", tag)[-MARK_CHARS:].rjust(MARK_CHARS, "0")


def _path(batch_id: str) -> str:
    return f"{PATH}/{quote(batch_id, safe='')}"


def _unix(time: object) -> float | None:
    """Of an RFC 3339 time."""
    try:
        return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else None
    except (ValueError, OverflowError):
        return None


HEAD: Final = b'{"requests":['
TAIL: Final = b"]}"


def _size(path: Path) -> int:
    """Of what `_requests` sends: a mark and its hyphen for each line, and a comma in place of each
    line feed but the last."""
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

"""OpenAI's Files and Batches, and what has their shape: Azure, Groq, Together, gateways in front of vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from penstock_workers.lanes.batch.apis.http import BatchHttp
from penstock_workers.lanes.batch.apis.listing import Listing, pages
from penstock_workers.lanes.batch.apis.openai_lines import read_line, write_line
from penstock_workers.lanes.batch.apis.output_lines import Output, output_lines
from penstock_workers.lanes.batch.apis.reading import counted, identifier, mapping, rows, said
from penstock_workers.lanes.batch.provider import (
    BatchAnswer,
    BatchGone,
    BatchLimits,
    BatchRefused,
    BatchSeen,
    Counts,
    LineProblem,
    NewBatch,
    UnreadableLine,
)

LIMITS: Final = BatchLimits(requests=50_000, total_bytes=200_000_000, line_bytes=200_000_000)
TAG: Final = "penstock_batch"  # the name of the tag in `metadata`
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
MAX_PROBLEMS: Final = 1_000  # of a batch that failed its validation: there may be one for each line
LISTING: Final = Listing(rows="data", place="after", next_page=None)
CLOCKS_APART_S: Final = 600.0  # between the provider and this machine


class OpenAIBatches:
    """Implements ``BatchProvider``."""

    limits = LIMITS

    def __init__(self, http: BatchHttp) -> None:
        self._http = http

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        return write_line(custom_id, endpoint, body, self.limits.line_bytes)

    async def upload(self, batch: NewBatch) -> str | None:
        size = batch.path.stat().st_size
        with batch.path.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", file, filename=_file_name(batch.tag), content_type="application/jsonl")
            heard = await self._http.heard("POST", "/v1/files", data=form, size=size, once=True)
        file_id = identifier(self._http.object_of(heard, once=True).get("id"))
        if file_id is None:
            raise self._http.unusable("the answer to an upload has no file id", once=True)
        return file_id

    async def find_upload(self, tag: str) -> str | None:
        """The newest file of this name."""
        query = {"purpose": "batch", "order": "desc", "limit": "1000"}
        async with contextlib.aclosing(pages(self._http, LISTING, "/v1/files", query)) as found:
            async for page in found:
                for file in page:
                    if file.get("filename") == _file_name(tag) and file.get("status") != "error":
                        return identifier(file.get("id"))
        return None

    async def create(self, batch: NewBatch) -> BatchSeen:
        asked = {
            "input_file_id": batch.file_id,
            "endpoint": batch.endpoint,
            "completion_window": "24h",
            "metadata": {TAG: batch.tag},
        }
        return self._seen(await self._http.call("POST", "/v1/batches", payload=asked, once=True, one=True), once=True)

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        """By the tag in its metadata; where a server keeps none, by its input, which no other batch has."""
        untagged: dict[str, str] = {}  # by their input
        async with contextlib.aclosing(pages(self._http, LISTING, "/v1/batches", {"limit": "100"})) as found:
            async for page in found:
                for batch in page:
                    tagged = mapping(batch.get("metadata")).get(TAG)
                    if tagged == tag:
                        return self._seen(batch, once=True)
                    batch_id, file_id = identifier(batch.get("id")), identifier(batch.get("input_file_id"))
                    if not tagged and batch_id is not None and file_id is not None:
                        untagged[file_id] = batch_id
                if _is_before(page, since - CLOCKS_APART_S):
                    break
        batch_id = untagged.get(await self.find_upload(tag) or "") if untagged else None
        return None if batch_id is None else await self.look(batch_id)

    async def look(self, batch_id: str) -> BatchSeen:
        return self._seen(await self._http.call("GET", _path("batches", batch_id), one=True), once=False)

    async def answers(self, seen: BatchSeen) -> AsyncGenerator[BatchAnswer | UnreadableLine, None]:
        for file_id in seen.outputs:
            output = Output(file_id, _path("files", file_id) + "/content", self.limits.requests)
            async with contextlib.aclosing(output_lines(self._http, output)) as lines:
                async for line in lines:
                    yield line if isinstance(line, UnreadableLine) else read_line(file_id, line)

    async def cancel(self, batch_id: str) -> BatchSeen:
        """One that has ended refuses: it is shown as it is."""
        try:
            batch = await self._http.call("POST", _path("batches", batch_id) + "/cancel", payload={}, one=True)
        except BatchGone:
            raise
        except BatchRefused:
            return await self.look(batch_id)
        return self._seen(batch, once=False)

    async def delete(self, seen: BatchSeen) -> None:
        for file_id in filter(None, (seen.file_id, *seen.outputs)):
            with contextlib.suppress(BatchGone):
                await self._http.call("DELETE", _path("files", file_id), one=True)

    async def close(self) -> None:
        await self._http.close()

    def _seen(self, batch: Mapping[str, Any], *, once: bool) -> BatchSeen:
        batch_id, status = identifier(batch.get("id")), identifier(batch.get("status"))
        if batch_id is None or status is None:
            raise self._http.unusable("the answer about a batch has no id or no status", once=once)
        status = status.lower()  # some servers of this shape write COMPLETED
        outputs = tuple(filter(None, (identifier(batch.get(f"{name}_file_id")) for name in ("output", "error"))))
        counts = mapping(batch.get("request_counts"))
        return BatchSeen(
            batch_id,
            status,
            ended=status in ENDED,
            counts=Counts(*(counted(counts.get(name)) for name in ("total", "completed", "failed")))
            if counts
            else None,
            expired=status == "expired",
            cancelled=status == "cancelled",
            problems=_problems(batch) if status == "failed" and not outputs else (),
            outputs=outputs,
            file_id=identifier(batch.get("input_file_id")),
        )


def _problems(batch: Mapping[str, Any]) -> tuple[LineProblem, ...]:
    """At least one: a batch that failed and does not say why has failed all the same."""
    errors = batch.get("errors")
    found = rows(errors.get("data") if isinstance(errors, dict) else errors, MAX_PROBLEMS)
    problems = tuple(
        LineProblem(said(error.get("code")) or "failed", said(error.get("message")), counted(error.get("line")) or None)
        for error in found
    )
    return problems or (LineProblem("failed", "the provider failed the batch and did not say why", None),)


def _is_before(page: list[Mapping[str, Any]], since: float) -> bool:
    """Whether all behind this page is older: it goes from new to old, and has come so far."""
    times = [time for batch in page if isinstance(time := batch.get("created_at"), int | float)]
    return len(times) > 1 and times == sorted(times, reverse=True) and times[0] > times[-1] and times[-1] < since


def _file_name(tag: str) -> str:
    return f"penstock-{tag}.jsonl"


def _path(collection: str, one: str) -> str:
    return f"/v1/{collection}/{quote(one, safe='')}"

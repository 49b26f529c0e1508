"""OpenAI's Files and Batches, and what has their shape (``shapes.py``): Azure, Groq, Together,
Mistral, gateways before vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from penstock_workers.lanes.batch.apis.http import BatchHttp
from penstock_workers.lanes.batch.apis.listing import pages
from penstock_workers.lanes.batch.apis.openai_lines import read_line, write_line
from penstock_workers.lanes.batch.apis.output_lines import Output, output_lines
from penstock_workers.lanes.batch.apis.reading import counted, identifier, mapping, rows, said
from penstock_workers.lanes.batch.apis.shapes import OPENAI, TAG, Shape
from penstock_workers.lanes.batch.provider import (
    BadLine,
    BatchAnswer,
    BatchGone,
    BatchRefused,
    BatchSeen,
    Counts,
    LineProblem,
    NewBatch,
    TryLater,
    UnreadableLine,
)

ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
MAX_PROBLEMS: Final = 1_000  # of a batch that failed its validation: there may be one for each line
CLOCKS_APART_S: Final = 600.0  # between the provider and this machine
UNREADY: Final = frozenset(
    {"uploaded", "pending", "running"}
)  # what Azure calls a file that no batch can use yet
FILE_WAIT_S: Final = 10.0


class OpenAIBatches:
    """Implements ``BatchProvider``."""

    def __init__(self, http: BatchHttp, shape: Shape = OPENAI) -> None:
        self._http, self._shape, self.limits = http, shape, shape.limits

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        taken = self._shape.endpoints
        if taken is not None and endpoint not in taken:
            asked = ", ".join(sorted(taken))
            raise BadLine(
                f"batches of this provider take requests to {asked}, and this one is for {endpoint}"
            )
        return write_line(
            custom_id, None if self._shape.bare_lines else endpoint, body, self.limits.line_bytes
        )

    async def upload(self, batch: NewBatch) -> str | None:
        shape, size, name = self._shape, batch.path.stat().st_size, _file_name(batch.tag)
        with batch.path.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("purpose", shape.purpose)
            for field, value in shape.form.items():
                form.add_field(field, value.format(name))
            form.add_field("file", file, filename=name, content_type="application/jsonl")
            heard = await self._http.heard(
                "POST", shape.upload_path, data=form, size=size, once=True
            )
        file_id = identifier(self._http.object_of(heard, once=True).get("id"))
        if file_id is None:
            raise self._http.unusable("the answer to an upload has no file id", once=True)
        return file_id

    async def find_upload(self, tag: str) -> str | None:
        """The newest file of this name."""
        shape = self._shape
        async with contextlib.aclosing(
            pages(self._http, shape.files, "/v1/files", shape.files_query)
        ) as found:
            async for page in found:
                for file in page:
                    if file.get("filename") == _file_name(tag) and file.get("status") != "error":
                        return identifier(file.get("id"))
        return None

    async def create(self, batch: NewBatch) -> BatchSeen:
        if self._shape.waits_for_file and batch.file_id is not None:
            await self._check_file(batch.file_id)
        path, asked = self._shape.batches_path, self._shape.asked(batch)
        return self._seen(
            await self._http.call("POST", path, payload=asked, once=True, one=True), once=True
        )

    async def _check_file(self, file_id: str) -> None:
        """Raises TryLater while a batch that is made of this file would be refused."""
        file = await self._http.call("GET", _path("/v1/files", file_id), one=True)
        if file.get("status") in UNREADY:
            words = (
                f"provider {self._http.account.name}: it still checks the uploaded file {file_id}"
            )
            raise TryLater(FILE_WAIT_S, words).named("request_conflict")

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        """By the tag in its metadata; where a server keeps none, by its input, which no other batch
        has."""
        untagged: dict[str, str] = {}  # by their input
        shape = self._shape
        listed = pages(self._http, shape.batches, shape.batches_path, shape.batches_query)
        async with contextlib.aclosing(listed) as found:
            async for page in found:
                for row in page:
                    batch = shape.shown(row)
                    tagged = mapping(batch.get("metadata")).get(TAG)
                    if tagged == tag:
                        return self._seen(batch, once=True)
                    batch_id, file_id = (
                        identifier(batch.get("id")),
                        identifier(batch.get("input_file_id")),
                    )
                    if not tagged and batch_id is not None and file_id is not None:
                        untagged[file_id] = batch_id
                if _is_before(page, since - CLOCKS_APART_S):
                    break
        batch_id = untagged.get(await self.find_upload(tag) or "") if untagged else None
        return None if batch_id is None else await self.look(batch_id)

    async def look(self, batch_id: str) -> BatchSeen:
        path = _path(self._shape.batches_path, batch_id)
        return self._seen(await self._http.call("GET", path, one=True), once=False)

    async def answers(self, seen: BatchSeen) -> AsyncGenerator[BatchAnswer | UnreadableLine, None]:
        for file_id in seen.outputs:
            output = Output(file_id, _path("/v1/files", file_id) + "/content", self.limits.requests)
            async with contextlib.aclosing(output_lines(self._http, output)) as lines:
                async for line in lines:
                    yield line if isinstance(line, UnreadableLine) else read_line(file_id, line)

    async def cancel(self, batch_id: str) -> BatchSeen:
        """One that has ended refuses: it is shown as it is."""
        try:
            path = _path(self._shape.batches_path, batch_id) + "/cancel"
            batch = await self._http.call("POST", path, payload={}, one=True)
        except BatchGone:
            raise
        except BatchRefused:
            return await self.look(batch_id)
        return self._seen(batch, once=False)

    async def delete(self, seen: BatchSeen) -> None:
        for file_id in filter(None, (seen.file_id, *seen.outputs)):
            with contextlib.suppress(BatchGone):
                await self._http.call("DELETE", _path("/v1/files", file_id), one=True)

    async def close(self) -> None:
        await self._http.close()

    def _seen(self, answer: Mapping[str, Any], *, once: bool) -> BatchSeen:
        batch = self._shape.shown(answer)
        batch_id, status = identifier(batch.get("id")), identifier(batch.get("status"))
        if batch_id is None or status is None:
            raise self._http.unusable("the answer about a batch has no id or no status", once=once)
        status = status.lower()  # some servers of this shape write COMPLETED
        meaning = self._shape.means.get(status, status)
        outputs = tuple(
            filter(None, (identifier(batch.get(f"{name}_file_id")) for name in ("output", "error")))
        )
        counts = mapping(batch.get("request_counts"))
        return BatchSeen(
            batch_id,
            status,
            ended=meaning in ENDED,
            counts=Counts(*(counted(counts.get(name)) for name in ("total", "completed", "failed")))
            if counts
            else None,
            expired=meaning == "expired",
            cancelled=meaning == "cancelled",
            problems=_problems(batch) if meaning == "failed" and not outputs else (),
            outputs=outputs,
            file_id=identifier(batch.get("input_file_id")),
        )


def _problems(batch: Mapping[str, Any]) -> tuple[LineProblem, ...]:
    """At least one: a batch that failed and does not say why has failed all the same."""
    errors = batch.get("errors")
    found = rows(errors.get("data") if isinstance(errors, dict) else errors, MAX_PROBLEMS)
    problems = tuple(
        LineProblem(
            said(error.get("code")) or "failed",
            said(error.get("message")),
            counted(error.get("line")) or None,
        )
        for error in found
    )
    return problems or (
        LineProblem("failed", "the provider failed the batch and did not say why", None),
    )


def _is_before(page: list[Mapping[str, Any]], since: float) -> bool:
    """Whether all behind this page is older: it goes from new to old, and has come so far."""
    times = [time for batch in page if isinstance(time := batch.get("created_at"), int | float)]
    return (
        len(times) > 1
        and times == sorted(times, reverse=True)
        and times[0] > times[-1]
        and times[-1] < since
    )


def _file_name(tag: str) -> str:
    return f"penstock-{tag}.jsonl"


def _path(collection: str, one: str) -> str:
    return f"{collection}/{quote(one, safe='')}"

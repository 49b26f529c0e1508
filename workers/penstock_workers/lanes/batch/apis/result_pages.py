"""The answers of a batch that its provider gives in pages of a list, as xAI does.

The form is that of xai-org/xai-proto, batch.proto, over REST: `batch_result` has a `response` with
one field named after what was asked, or an `error` of google.rpc.Status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import orjson

from penstock_workers.lanes.batch.apis.http import BatchHttp
from penstock_workers.lanes.batch.apis.output_lines import MOST_BREAKS, PAUSE_CAP_S
from penstock_workers.lanes.batch.apis.provider import (
    BatchAnswer,
    BatchGone,
    BatchRefused,
    TryLater,
    UnreadableLine,
)
from penstock_workers.lanes.batch.apis.reading import (
    LineReader,
    as_it_came,
    identifier,
    mapping,
    rpc_status,
    said,
)

PAGE: Final = 100  # answers of one page: it is held in memory, with 160 KB for each of them
CANCELLED: Final = 1  # of google.rpc.Code


class _Outcome(msgspec.Struct):
    response: dict[str, msgspec.Raw] | None = None
    error: Any = None


class _Result(msgspec.Struct):
    batch_request_id: str
    batch_result: _Outcome | None = None
    error_message: Any = None


class _Page(msgspec.Struct):
    results: list[msgspec.Raw] = []
    pagination_token: str | None = None


_pages, _results = LineReader(_Page), LineReader(_Result)


async def answers_in_pages(
    http: BatchHttp, path: str, most: int
) -> AsyncGenerator[BatchAnswer | UnreadableLine, None]:
    """Yield every result, page by page; a page that breaks off is asked for again.

    Raises BatchGone and TryLater. At most ``most`` results are read."""
    token, number = "", 0
    while number < most:
        text = await _page(http, path, token)
        try:
            page = _pages.read(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise http.unusable(f"the list {path} is no page of results", once=False) from None
        for one in page.results:
            number += 1
            yield read_result(path, number, as_it_came(one, text))
        if not page.pagination_token or not page.results or page.pagination_token == token:
            return
        token = page.pagination_token


async def _page(http: BatchHttp, path: str, token: str) -> bytes:
    query = {"limit": str(PAGE)} | ({"pagination_token": token} if token else {})
    breaks = 0
    while True:
        try:
            return (await http.heard("GET", path, query=query, one=True)).body
        except (BatchGone, BatchRefused):
            raise
        except TryLater:
            breaks += 1
            if breaks > MOST_BREAKS:
                raise
            await asyncio.sleep(min(PAUSE_CAP_S, http.times.pause_s * 2 ** (breaks - 1)))


def read_result(output: str, number: int, text: bytes) -> BatchAnswer | UnreadableLine:
    """Read one result: an answer, or an error with google.rpc's code."""
    try:
        result = _results.read(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return UnreadableLine(output, number, f"no result of a batch: {said(str(fault))}")
    if identifier(result.batch_request_id) is None:
        return UnreadableLine(output, number, "its batch_request_id is no usable name")
    name, outcome = result.batch_request_id, result.batch_result or _Outcome()
    answer = next(iter((outcome.response or {}).values()), None)
    if answer is not None and bytes(answer).startswith(b"{"):
        return BatchAnswer(name, 200, as_it_came(answer, text))
    error = mapping(outcome.error)
    message = said(result.error_message) or said(error.get("message"))
    code = error.get("code")
    if code == CANCELLED:
        return BatchAnswer(name, None, b"", error="batch_cancelled", message=message)
    if not error and not message:
        return UnreadableLine(output, number, "it has neither a response nor an error")
    body = orjson.dumps({"error": dict(error) or {"message": message}})
    return BatchAnswer(name, rpc_status(code), body, error="error", message=message)

"""OpenAI's Files and Batches, and who has their form: Azure, Groq, Together, Mistral, xAI.

Each of these is a row of ``SHAPES`` that says where it differs, taken from what the provider itself
publishes. The row is the provider's `profile`, which its host names where nothing else does. What
no row names, such as gateways before vLLM, is asked as OpenAI is.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp
import msgspec
import orjson

from penstock_producer.job.endpoints import CHAT
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
    LineProblem,
    NewBatch,
    TryLater,
    UnreadableLine,
    within,
)
from penstock_workers.lanes.batch.apis.reading import (
    MAX_ID_CHARS,
    LineReader,
    as_it_came,
    counted,
    identifier,
    mapping,
    request_body,
    rows,
    said,
)
from penstock_workers.lanes.batch.apis.result_pages import answers_in_pages

TAG: Final = "penstock_batch"  # the name of the tag in `metadata`
WINDOW: Final = "24h"
LIMITS: Final = BatchLimits(requests=50_000, total_bytes=200_000_000, line_bytes=200_000_000)
BEHIND: Final = Listing(rows="data", place="after", next_page=None)
NUMBERED: Final = Listing(rows="data", place="page", next_page=None, full_page=100)
WITH_TOKENS: Final = Listing(rows="data", place="pagination_token", next_page="pagination_token")


def _asked(batch: NewBatch) -> dict[str, Any]:
    return {
        "input_file_id": batch.file_id,
        "endpoint": batch.endpoint,
        "completion_window": WINDOW,
        "metadata": {TAG: batch.tag},
    }


def _asked_together(batch: NewBatch) -> dict[str, Any]:
    """Return what creates a batch; Together keeps no metadata."""
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


def _asked_xai(batch: NewBatch) -> dict[str, Any]:
    """Return what creates a batch; xAI keeps a name, and each line says what it asks."""
    return {"name": batch.tag, "input_file_id": batch.file_id}


def _shown(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    return batch


def _shown_together(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the batch out of `job`, where the answer to a create has it.

    One text says why a batch has failed."""
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


def _shown_xai(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the batch with a status, which xAI's has not: its counts and its end say how it is.

    Requests that are left when it is cancelled count as such. It has no output file: what it has
    answered is asked for by its own id."""
    state = mapping(batch.get("state"))
    total, good = counted(state.get("num_requests")), counted(state.get("num_success"))
    bad = counted(state.get("num_error")) + counted(state.get("num_cancelled"))
    why = batch.get("cancel_by_xai_message")
    status = "validating" if total == 0 else "in_progress"
    if batch.get("cancel_time") or why:
        status = "failed" if why and total == 0 else "cancelled"
    elif total and counted(state.get("num_pending")) == 0:
        status = "completed"
    elif _is_past(batch.get("expire_time")):
        status = "expired"
    return {
        **batch,
        "id": batch.get("batch_id"),
        "status": status,
        "metadata": {TAG: batch.get("name")},
        "output_file_id": batch.get("batch_id") if total and status in ENDED else None,
        "errors": [{"code": "failed", "message": why}] if why else None,
        "request_counts": {"total": total, "completed": good, "failed": bad} if total else None,
    }


def _is_past(value: object) -> bool:
    """Return whether a time in words is over; of a bare date, the whole day."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        at = None
    if at is None:
        return False
    over = at if "T" in str(value) else at + timedelta(days=1)
    return over.replace(tzinfo=over.tzinfo or UTC) <= datetime.now(UTC)


class Shape(NamedTuple):
    """The shape of one provider's files and batches, to ask and to read."""

    purpose: str = "batch"
    upload_path: str = "/v1/files"
    # fields of an upload besides; {} in a value stands for the file's name
    form: Mapping[str, str] = {}
    files_query: Mapping[str, str] = {"purpose": "batch", "order": "desc", "limit": "1000"}
    files: Listing = BEHIND
    waits_for_file: bool = False  # an upload is usable only when its status says so
    batches_path: str = "/v1/batches"
    batches_query: Mapping[str, str] = {"limit": "100"}
    batches: Listing = BEHIND
    cancel: str = "/cancel"  # behind the address of a batch
    # answers are pages of a list at this place behind the address of a batch; None: files
    results: str | None = None
    endpoints: frozenset[str] | None = None  # that its batches may ask; None: it is not said
    bare_lines: bool = False  # a line has its id and its body, and no method and url
    asked: Callable[[NewBatch], dict[str, Any]] = _asked
    shown: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _shown
    # its words for how a batch stands, in small letters, that are not OpenAI's
    means: Mapping[str, str] = {}
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
    # Lines of a file as OpenAI's, a batch of a name and that file, counts in place of a status,
    # answers in pages of /results (docs.x.ai/developers/advanced-api-usage/batch-api; xai-org/
    # xai-proto, batch.proto; vercel/ai, its provider of xAI). How much one file may have is not
    # said: as OpenAI's. Of chats alone it is known how their answers stand in a page.
    "xai": Shape(
        files_query={"limit": "100"},
        files=WITH_TOKENS,
        batches=WITH_TOKENS._replace(rows="batches"),
        cancel=":cancel",
        results="/results",
        endpoints=frozenset({CHAT}),
        asked=_asked_xai,
        shown=_shown_xai,
    ),
}
"""By the names of metering profiles."""


class _Response(msgspec.Struct):
    status_code: Any = None
    request_id: Any = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Answer(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: Any = None


_answers: Final = LineReader(_Answer)


def write_line(custom_id: str, endpoint: str | None, body: bytes, most_bytes: int) -> bytes:
    """Write a request as a line; ``endpoint`` is None where the batch names it for all its lines.

    Raises BadLine and LineTooLong."""
    named = {} if endpoint is None else {"method": "POST", "url": endpoint}
    head = orjson.dumps({"custom_id": custom_id, **named})
    line = b"".join((head[:-1], b',"body":', request_body(body), b"}\n"))
    return within(line, most_bytes)


def read_line(output: str, line: Line) -> BatchAnswer | UnreadableLine:
    """Read a line of OpenAI, vLLM or a relative: a response, an error, or (vLLM) both."""
    try:
        answer = _answers.read(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return UnreadableLine(output, line.number, f"no answer of a batch: {said(str(error))}")
    if identifier(answer.custom_id) is None:
        return UnreadableLine(
            output, line.number, f"its custom_id is empty, or no name of {MAX_ID_CHARS} characters"
        )
    code, message = _error(answer.error)
    response = answer.response
    if response is not None and _is_status(response.status_code):
        body = as_it_came(response.body, line.text)
        if body == b"null" and answer.error:
            body = orjson.dumps({"error": answer.error})
        request_id = identifier(response.request_id)
        return BatchAnswer(
            answer.custom_id, response.status_code, body, request_id, code or None, message
        )
    if not answer.error:
        return UnreadableLine(
            output, line.number, "it has neither a response with a status nor an error"
        )
    return BatchAnswer(answer.custom_id, None, b"", error=code or "error", message=message)


def _is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599


def _error(error: object) -> tuple[str, str]:
    if isinstance(error, str):
        return "error", said(error)
    fields = mapping(error)
    code = fields.get("code") or fields.get("type")
    return said(str(code)) if code else "", said(fields.get("message"))


ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
MAX_PROBLEMS: Final = 1_000  # of a batch that failed its validation: there may be one for each line
CLOCKS_APART_S: Final = 600.0  # between the provider and this machine
# what Azure calls a file that no batch can use yet
UNREADY: Final = frozenset({"uploaded", "pending", "running"})
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
        """Return the newest file of this name."""
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
        """Raise TryLater while a batch that is made of this file would be refused."""
        file = await self._http.call("GET", _path("/v1/files", file_id), one=True)
        if file.get("status") in UNREADY:
            words = (
                f"provider {self._http.account.name}: it still checks the uploaded file {file_id}"
            )
            raise TryLater(FILE_WAIT_S, words).named("request_conflict")

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        """Find a batch by the tag in its metadata, or else by its input.

        No other batch has that, and some servers keep no metadata."""
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
            if self._shape.results is not None:
                path = _path(self._shape.batches_path, file_id) + self._shape.results
                async for answer in answers_in_pages(self._http, path, self.limits.requests):
                    yield answer
                continue
            output = Output(file_id, _path("/v1/files", file_id) + "/content", self.limits.requests)
            async with contextlib.aclosing(output_lines(self._http, output)) as lines:
                async for line in lines:
                    yield line if isinstance(line, UnreadableLine) else read_line(file_id, line)

    async def cancel(self, batch_id: str) -> BatchSeen:
        """Cancel a batch; one that has ended refuses, and is shown as it is."""
        try:
            path = _path(self._shape.batches_path, batch_id) + self._shape.cancel
            batch = await self._http.call("POST", path, payload={}, one=True)
        except BatchGone:
            raise
        except BatchRefused:
            return await self.look(batch_id)
        return self._seen(batch, once=False)

    async def delete(self, seen: BatchSeen) -> None:
        outputs = seen.outputs if self._shape.results is None else ()
        for file_id in filter(None, (seen.file_id, *outputs)):
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
    """Return what was wrong with a batch, one problem at least.

    A batch that failed and does not say why has failed all the same."""
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
    """Return whether all behind this page is older than ``since``.

    It is if the page goes from new to old, and has come so far."""
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

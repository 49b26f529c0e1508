"""Vertex AI's batch jobs: a file of requests to one model of Gemini in GCS, and one of responses.

The calls and their fields are those of aiplatform v1 (projects.locations.batchPredictionJobs, as
google-genai writes them) and of Cloud Storage's JSON API; the lines are those of
docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/batch-prediction-from-cloud-storage.
A line has no id of its own: each request is labelled, and comes back with its response.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import orjson

from penstock_producer.job.endpoints import GENERATE
from penstock_workers.lanes.batch.apis.bucket import batch_name, file_of, folder_of
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

LIMITS: Final = BatchLimits(
    requests=200_000,  # not confirmed: "hundreds of thousands of requests in a single batch"
    total_bytes=1_000_000_000,  # 1 GB of an input file, as Google says of embeddings
    line_bytes=15_000_000,  # it comes back with its response, in a line that must be read
    id_chars=38,  # a label has 63 characters, and an id is written with 8 for each 5
)
LABEL: Final = "penstock"
JOBS: Final = Listing(rows="batchPredictionJobs", place="pageToken", next_page="nextPageToken")
OBJECTS: Final = Listing(rows="items", place="pageToken", next_page="nextPageToken")
ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"})
_CODE: Final = re.compile(r'"code":\s*(\d{1,3})')


class Place(NamedTuple):
    """The place of batches by the settings: whose they are, and where their files lie."""

    parent: str  # "/v1/projects/…/locations/…"
    bucket: str  # "gs://bucket/prefix"


class _Asked(msgspec.Struct):
    labels: dict[str, str] = {}


class _Answer(msgspec.Struct):
    request: _Asked
    status: Any = ""
    response: msgspec.Raw = msgspec.Raw(b"")


_answers: Final = LineReader(_Answer)


def write_line(custom_id: str, endpoint: str, body: bytes, most_bytes: int) -> bytes:
    """Return a request as a line; raise BadLine and LineTooLong.

    The model is the batch's: a request that names it says so only to Penstock."""
    if endpoint != GENERATE:
        raise BadLine(
            f"Vertex AI's batches take requests to {GENERATE}, and this one is for {endpoint}"
        )
    request = request_object(body)
    request.pop("model", None)
    request["labels"] = {**mapping(request.get("labels")), LABEL: _label(custom_id)}
    return within(orjson.dumps({"request": request}) + b"\n", most_bytes)


def _label(custom_id: str) -> str:
    """Write an id with what a label may have: lower-case letters and digits."""
    return base64.b32encode(custom_id.encode()).decode().rstrip("=").lower()


def _id_in(label: str | None) -> str | None:
    if not label:
        return None
    with contextlib.suppress(binascii.Error, UnicodeDecodeError):
        return base64.b32decode(label.upper() + "=" * (-len(label) % 8)).decode()
    return None


def read_line(output: str, line: Line) -> BatchAnswer | UnreadableLine:
    try:
        answer = _answers.read(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return UnreadableLine(output, line.number, f"no response of a batch: {said(str(fault))}")
    name = identifier(_id_in(answer.request.labels.get(LABEL)))
    if name is None:
        return UnreadableLine(output, line.number, f"its request has no label {LABEL} of a batch")
    response, status = as_it_came(answer.response, line.text), said(answer.status)
    if not status and response.startswith(b"{") and response != b"{}":
        return BatchAnswer(name, 200, response)
    if not status:
        return UnreadableLine(output, line.number, "it has neither a response nor a status")
    found = _CODE.search(status)
    code = rpc_status(int(found[1])) if found else 500
    body = orjson.dumps({"error": {"code": code, "message": status}})
    return BatchAnswer(name, code, body, error="error", message=status)


class VertexBatches:
    """Implements ``BatchProvider``."""

    limits = LIMITS

    def __init__(self, http: BatchHttp, files: BatchHttp, place: Place) -> None:
        """Make it of the calls to Vertex AI, and of those to Cloud Storage."""
        self._http, self._files, self._place = http, files, place

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        return write_line(custom_id, endpoint, body, self.limits.line_bytes)

    async def upload(self, batch: NewBatch) -> str | None:
        uri, size = file_of(self._place.bucket, batch.tag), batch.path.stat().st_size
        bucket, name = _parts(uri)
        with batch.path.open("rb") as file:
            await self._files.heard(
                "POST",
                f"/upload/storage/v1/b/{bucket}/o",
                query={"uploadType": "media", "name": name},
                data=file,
                size=size,
                headers={"Content-Type": "application/jsonl"},
                once=True,
            )
        return uri

    async def find_upload(self, tag: str) -> str | None:
        uri = file_of(self._place.bucket, tag)
        try:
            await self._files.call("GET", _path(uri), one=True)
        except BatchGone:
            return None
        return uri

    async def create(self, batch: NewBatch) -> BatchSeen:
        if not batch.model:
            raise BatchRefused(
                0, "missing_model", "a batch of Vertex AI is for one model, and the job names none"
            )
        model = batch.model.removeprefix("models/")
        asked = {
            "displayName": batch_name(batch.tag),
            "model": model if "/" in model else f"publishers/google/models/{model}",
            "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [batch.file_id]}},
            "outputConfig": {
                "predictionsFormat": "jsonl",
                "gcsDestination": {"outputUriPrefix": folder_of(self._place.bucket, batch.tag)},
            },
        }
        path = f"{self._place.parent}/batchPredictionJobs"
        made = await self._http.call("POST", path, payload=asked, once=True, one=True)
        # an end is believed where it is looked at: this answer names no output
        return self._seen(made, once=True, output=None)._replace(ended=False)

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        path = f"{self._place.parent}/batchPredictionJobs"
        query = {"filter": f'displayName="{batch_name(tag)}"', "pageSize": "100"}
        async with contextlib.aclosing(pages(self._http, JOBS, path, query)) as found:
            async for page in found:
                for job in page:
                    if job.get("displayName") == batch_name(tag):
                        return self._seen(job, once=True, output=None)._replace(ended=False)
        return None

    async def look(self, batch_id: str) -> BatchSeen:
        path = f"{self._place.parent}/batchPredictionJobs/{quote(batch_id, safe='')}"
        job = await self._http.call("GET", path, one=True)
        folder = mapping(job.get("outputInfo")).get("gcsOutputDirectory")
        output = await self._output(folder) if isinstance(folder, str) else None
        return self._seen(job, once=False, output=output)

    async def _output(self, folder: str) -> str | None:
        """Return the file of responses in the folder that a job has made for it."""
        bucket, prefix = _parts(folder.rstrip("/") + "/")
        query, path = {"prefix": prefix}, f"/storage/v1/b/{bucket}/o"
        async with contextlib.aclosing(pages(self._files, OBJECTS, path, query)) as found:
            async for page in found:
                for one in page:
                    name = identifier(one.get("name"))
                    if name is not None and name.endswith("predictions.jsonl"):
                        return f"gs://{bucket}/{name}"
        return None

    async def answers(self, seen: BatchSeen) -> AsyncGenerator[BatchAnswer | UnreadableLine, None]:
        for uri in seen.outputs:
            output = Output(uri, _path(uri), self.limits.requests, {"alt": "media"})
            async with contextlib.aclosing(output_lines(self._files, output)) as lines:
                async for line in lines:
                    yield line if isinstance(line, UnreadableLine) else read_line(uri, line)

    async def cancel(self, batch_id: str) -> BatchSeen:
        """Cancel a job; one that has ended refuses, and is shown as it is."""
        try:
            path = f"{self._place.parent}/batchPredictionJobs/{quote(batch_id, safe='')}:cancel"
            await self._http.call("POST", path, payload={}, one=True)
        except BatchGone:
            raise
        except BatchRefused:
            pass
        return await self.look(batch_id)

    async def delete(self, seen: BatchSeen) -> None:
        for uri in filter(None, (seen.file_id, *seen.outputs)):
            with contextlib.suppress(BatchGone):
                await self._files.call("DELETE", _path(uri), one=True)

    async def close(self) -> None:
        await self._http.close()
        await self._files.close()

    def _seen(self, job: Mapping[str, Any], *, once: bool, output: str | None) -> BatchSeen:
        name, state = identifier(job.get("name")), identifier(job.get("state"))
        if name is None or state is None:
            raise self._http.unusable("the answer about a batch has no name or state", once=once)
        end, stats = state.removeprefix("JOB_STATE_"), mapping(job.get("completionStats"))
        names = ("successfulCount", "failedCount", "incompleteCount")
        good, bad, left = (counted(stats.get(one)) for one in names)
        uris = mapping(mapping(job.get("inputConfig")).get("gcsSource")).get("uris")
        return BatchSeen(
            name.rpartition("/")[2],
            end,
            ended=end in ENDED,
            counts=Counts(good + bad + left, good, bad) if stats else None,
            expired=end in ("EXPIRED", "PARTIALLY_SUCCEEDED"),
            cancelled=end == "CANCELLED",
            problems=_problems(job) if end == "FAILED" and output is None else (),
            outputs=() if output is None or end not in ENDED else (output,),
            file_id=identifier(uris[0]) if isinstance(uris, list) and uris else None,
        )


def _parts(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return quote(bucket, safe=""), name


def _path(uri: str) -> str:
    """Return the path of an object in Cloud Storage's JSON API."""
    bucket, name = _parts(uri)
    return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"


def _problems(job: Mapping[str, Any]) -> tuple[LineProblem, ...]:
    error = mapping(job.get("error"))
    message = said(error.get("message")) or "the provider failed the batch and did not say why"
    return (LineProblem("failed", message, None),)

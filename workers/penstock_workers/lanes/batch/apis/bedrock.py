"""Bedrock's batch jobs: a file of records for one model in S3, and a file of answers beside it.

The calls and their fields are those of botocore's service model of bedrock (2023-04-20,
CreateModelInvocationJob and its kin); the lines and where they lie are those of
docs.aws.amazon.com/bedrock/latest/userguide, batch-inference-data and batch-inference-results.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import orjson

from penstock_producer.job.endpoints import CONVERSE
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
    said,
)

LIMITS: Final = BatchLimits(
    requests=50_000,  # the quota "Records per input file per batch inference job"
    total_bytes=1_000_000_000,  # the quota "Batch inference input file size"
    line_bytes=20_000_000,  # it comes back with its answer, in a line that must be read
)
HOURS: Final = 24  # that a job may take: the least that Bedrock lets it
JOBS: Final = "/model-invocation-job"
LISTING: Final = Listing(rows="invocationJobSummaries", place="nextToken", next_page="nextToken")
ENDED: Final = frozenset({"Completed", "Failed", "Stopped", "PartiallyCompleted", "Expired"})


class Place(NamedTuple):
    """The place of batches by the settings: where their files lie, and who may read them."""

    bucket: str  # "s3://bucket/prefix"
    role: str  # the ARN that Bedrock takes on
    least: int  # records of a batch


class _Answer(msgspec.Struct, rename="camel"):
    record_id: str
    model_output: msgspec.Raw = msgspec.Raw(b"")
    error: Any = None


_answers: Final = LineReader(_Answer)


def write_line(custom_id: str, endpoint: str, body: bytes, most_bytes: int) -> bytes:
    """Return a request as a line; raise BadLine and LineTooLong.

    The model is the batch's: a request that names it says so only to Penstock."""
    if endpoint != CONVERSE:
        raise BadLine(
            f"Bedrock's batches take requests to {CONVERSE}, and this one is for {endpoint}"
        )
    request = request_object(body)
    request.pop("model", None)
    if "toolConfig" in request or "textFormat" in mapping(request.get("outputConfig")):
        # "does not support tool calling … or structured output": .../batch-inference.html
        raise BadLine("Bedrock's batches take no tools and no form of the answer: send it to api")
    line = orjson.dumps({"recordId": custom_id, "modelInput": request}) + b"\n"
    return within(line, most_bytes)


def read_line(output: str, line: Line) -> BatchAnswer | UnreadableLine:
    try:
        answer = _answers.read(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return UnreadableLine(output, line.number, f"no record of a batch: {said(str(fault))}")
    if identifier(answer.record_id) is None:
        return UnreadableLine(output, line.number, "its recordId is empty or no usable name")
    output_bytes = as_it_came(answer.model_output, line.text)
    if output_bytes.startswith(b"{"):
        return BatchAnswer(answer.record_id, 200, output_bytes)
    error = mapping(answer.error)
    if not error:
        return UnreadableLine(output, line.number, "it has neither a modelOutput nor an error")
    code, message = error.get("errorCode"), said(error.get("errorMessage"))
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    body = orjson.dumps({"message": message})
    return BatchAnswer(answer.record_id, status, body, error="error", message=message)


class BedrockBatches:
    """Implements ``BatchProvider``.

    A job has its batch's tag as its token and in its name: made twice it is one, and it is found
    again by the name."""

    limits = LIMITS

    def __init__(self, http: BatchHttp, files: BatchHttp, place: Place) -> None:
        """Make it of the calls to Bedrock, and of those to S3."""
        self._http, self._files, self._place = http, files, place

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        return write_line(custom_id, endpoint, body, self.limits.line_bytes)

    async def upload(self, batch: NewBatch) -> str | None:
        self._check(batch)
        uri, size = file_of(self._place.bucket, batch.tag), batch.path.stat().st_size
        with batch.path.open("rb") as file:
            await self._files.heard("PUT", _path(uri), data=file, size=size, once=True)
        return uri

    async def find_upload(self, tag: str) -> str | None:
        uri = file_of(self._place.bucket, tag)
        try:
            # not HEAD, whose refusals say nothing
            await self._files.heard("GET", _path(uri), headers={"Range": "bytes=0-0"}, one=True)
        except BatchGone:
            return None
        return uri

    async def create(self, batch: NewBatch) -> BatchSeen:
        self._check(batch)
        asked = {
            "jobName": batch_name(batch.tag),
            "clientRequestToken": batch.tag,
            "roleArn": self._place.role,
            "modelId": batch.model,
            "modelInvocationType": "Converse",
            "inputDataConfig": {
                "s3InputDataConfig": {"s3InputFormat": "JSONL", "s3Uri": batch.file_id}
            },
            "outputDataConfig": {
                "s3OutputDataConfig": {"s3Uri": folder_of(self._place.bucket, batch.tag)}
            },
            "timeoutDurationInHours": HOURS,
        }
        made = await self._http.call("POST", JOBS, payload=asked, once=True, one=True)
        return self._seen({**asked, **made, "status": "Submitted"}, once=True)

    def _check(self, batch: NewBatch) -> None:
        """Refuse a batch that Bedrock would fail, before anything is sent."""
        if not batch.model:
            raise BatchRefused(
                0, "missing_model", "a batch of Bedrock is for one model, and the job names none"
            )
        if batch.requests < self._place.least:
            raise BatchRefused(
                0,
                "too_few_records",
                f"Bedrock takes no batch of fewer than {self._place.least} records "
                f"(batch_min_requests), and this one has {batch.requests}: move the job to real "
                "time, or say what your account's quota of this model is",
            )

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        query = {"nameContains": batch_name(tag), "maxResults": "100"}
        async with contextlib.aclosing(pages(self._http, LISTING, JOBS + "s", query)) as found:
            async for page in found:
                for job in page:
                    if job.get("jobName") == batch_name(tag):
                        return self._seen(job, once=True)
        return None

    async def look(self, batch_id: str) -> BatchSeen:
        path = f"{JOBS}/{quote(batch_id, safe='')}"
        return self._seen(await self._http.call("GET", path, one=True), once=False)

    async def answers(self, seen: BatchSeen) -> AsyncGenerator[BatchAnswer | UnreadableLine, None]:
        for uri in seen.outputs:
            output = Output(uri, _path(uri), self.limits.requests, id_field="recordId")
            async with contextlib.aclosing(output_lines(self._files, output)) as lines:
                async for line in lines:
                    yield line if isinstance(line, UnreadableLine) else read_line(uri, line)

    async def cancel(self, batch_id: str) -> BatchSeen:
        """Stop a job; one that has ended refuses, and is shown as it is."""
        try:
            path = f"{JOBS}/{quote(batch_id, safe='')}/stop"
            await self._http.call("POST", path, payload={}, one=True)
        except BatchGone:
            raise
        except BatchRefused:
            pass
        return await self.look(batch_id)

    async def delete(self, seen: BatchSeen) -> None:
        manifests = [uri.rpartition("/")[0] + "/manifest.json.out" for uri in seen.outputs]
        for uri in filter(None, (seen.file_id, *seen.outputs, *manifests)):
            with contextlib.suppress(BatchGone):
                await self._files.heard("DELETE", _path(uri), one=True)

    async def close(self) -> None:
        await self._http.close()
        await self._files.close()

    def _seen(self, job: Mapping[str, Any], *, once: bool) -> BatchSeen:
        arn, status = identifier(job.get("jobArn")), identifier(job.get("status"))
        if arn is None or status is None:
            raise self._http.unusable("the answer about a batch has no ARN or no status", once=once)
        batch_id, output = arn.rpartition("/")[2], None
        given = mapping(mapping(job.get("inputDataConfig")).get("s3InputDataConfig")).get("s3Uri")
        into = mapping(mapping(job.get("outputDataConfig")).get("s3OutputDataConfig")).get("s3Uri")
        names = ("totalRecordCount", "successRecordCount", "errorRecordCount")
        total, good, bad = (counted(job.get(name)) for name in names)
        if isinstance(given, str) and isinstance(into, str) and status in ENDED:
            file = given.rpartition("/")[2]
            output = f"{into.rstrip('/')}/{batch_id}/{file}.out"
        has_output = output is not None and (status == "Completed" or good + bad > 0)
        return BatchSeen(
            batch_id,
            status,
            ended=status in ENDED,
            counts=Counts(total, good, bad) if total else None,
            expired=status in ("Expired", "PartiallyCompleted"),
            cancelled=status == "Stopped",
            problems=_problems(job) if status == "Failed" and not has_output else (),
            outputs=(output,) if has_output and output is not None else (),
            file_id=identifier(given),
        )


def _path(uri: str) -> str:
    """Return the path of an object: the bucket, and its key."""
    return quote("/" + uri.removeprefix("s3://"), safe="/-_.~")


def _problems(job: Mapping[str, Any]) -> tuple[LineProblem, ...]:
    why = said(job.get("message")) or "the provider failed the batch and did not say why"
    return (LineProblem("failed", why, None),)

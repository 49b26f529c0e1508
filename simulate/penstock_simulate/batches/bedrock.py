"""Bedrock's batch jobs, and the S3 beside them: a file of records becomes a file of answers.

What Bedrock checks, shows and writes is that of botocore's service model of bedrock (2023-04-20)
and of docs.aws.amazon.com/bedrock/latest/userguide: batch-inference-data, batch-inference-results
and quotas. Of S3 there is what an object needs: PUT, HEAD, GET and DELETE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.answers.bedrock import key_of, signing_fault
from penstock_simulate.answers.calls import CONVERSE, Call, misshapen
from penstock_simulate.answers.faults import document_of
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.answers.replies import answer_body
from penstock_simulate.batches.batch import Batch, Dialect, Queue, Refused
from penstock_simulate.batches.batch_service import BatchService
from penstock_simulate.batches.folder import TooLarge
from penstock_simulate.batches.intake import Asked, Problem, Span, renamed, spans_of_lines
from penstock_simulate.batches.results import Undone
from penstock_simulate.batches.sent import CHUNK_BYTES, download, in_words_of, json
from penstock_simulate.batches.timeline import Status
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.reply import Usage

MAX_RECORDS = 50_000
MAX_OBJECT_BYTES = 1_000_000_000
NAME = re.compile(r"[a-zA-Z0-9]{1,63}(-*[a-zA-Z0-9+\-.]){0,63}")
TOKEN = re.compile(r"[a-zA-Z0-9]{1,256}(-*[a-zA-Z0-9]){0,256}")
ROLE = re.compile(r"arn:aws(-[^:]+)?:iam::([0-9]{12})?:role/.+")
URI = re.compile(r"s3://[a-z0-9][-.a-z0-9]{1,61}[a-z0-9](?:/[-!_*'().a-z0-9A-Z]+)*/?")
ARN = "arn:aws:bedrock:eu-central-1:123456789012:model-invocation-job/"
STATUSES: Mapping[Status, str] = {
    Status.VALIDATING: "Validating",
    Status.FAILED: "Failed",
    Status.IN_PROGRESS: "InProgress",
    Status.FINALIZING: "InProgress",
    Status.CANCELLING: "Stopping",
    Status.COMPLETED: "Completed",
    Status.EXPIRED: "PartiallyCompleted",
    Status.CANCELLED: "Stopped",
}


def read_record(given: dict[str, Any], model: str) -> Asked:
    name = given["recordId"]
    call = Call(CONVERSE, b"", None, name, 1, document_of(name), model=model)
    usable = misshapen(call, given["modelInput"]) is None
    return Asked(name, call, usable, {"modelInput": given["modelInput"]})


class RecordReader:
    """Checks the form of records; what is in their input is checked by the model."""

    def __init__(self, model: str, least: int) -> None:
        self.problems: list[Problem] = []
        self._model, self._least = model, least

    def spans(self, source: Path) -> Iterator[Span]:
        return spans_of_lines(source)

    def checked(self, raw: bytes, number: int) -> Asked | None:
        try:
            given = orjson.loads(raw)
        except orjson.JSONDecodeError:
            given = None
        if not isinstance(given, dict) or not isinstance(given.get("modelInput"), dict):
            why = f"Record {number} is not a JSON object"
            self.problems.append(Problem("invalid", why, number))
            return None
        return read_record({"recordId": f"R{number:010}"} | given, self._model)

    def whole(self, requests: int) -> None:
        if not self._least <= requests <= MAX_RECORDS:
            why = (
                f"Batch job contains {requests} records: it must have from {self._least} to "
                f"{MAX_RECORDS}."
            )
            self.problems.append(Problem("records", why))


class RecordWording:
    """One line for each record that the model got to; what was left has none."""

    apart = False

    def __init__(self, model: str) -> None:
        self._model = model

    def asked(self, raw: bytes) -> Asked:
        return read_record(orjson.loads(raw), self._model)

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
        body, usage = answer_body(asked.call)
        return _record(asked, "modelOutput", orjson.Fragment(body)), usage

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes:
        status, _ = refusals.bedrock(refusal, request_id)
        return _record(asked, "error", {"errorCode": status, "errorMessage": refusal.message})

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        if why is not Undone.TIMED_OUT:
            return b""
        return _record(asked, "error", {"errorCode": 408, "errorMessage": "Timed out."})

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        return renamed(line, "recordId")


def _record(asked: Asked, field: str, value: Any) -> bytes:
    return orjson.dumps({"recordId": asked.custom_id, **asked.echo, field: value})


def no_room(queue: Queue, config: SimulatorConfig) -> Problem | None:
    """Return nothing: Bedrock limits the jobs of a model, and not their tokens."""
    return None


@dataclass(slots=True)
class StoredObject:
    """An object of S3. ``of`` is the batch whose results it holds."""

    path: Path
    of: Batch | None = None


class Objects:
    """Handlers of aiohttp, and the objects by `bucket/key`."""

    def __init__(self, service: BatchService) -> None:
        self._service = service
        self._objects: dict[str, StoredObject] = {}

    def routes(self) -> list[web.RouteDef]:
        path = "/s3/{name:.+}"
        return [
            web.put(path, self.put),
            web.get(path, self.get),
            web.delete(path, self.delete),
        ]

    def at(self, uri: str) -> StoredObject | None:
        return self._objects.get(uri.removeprefix("s3://"))

    def add(self, uri: str, path: Path, of: Batch | None = None) -> None:
        self._objects[uri.removeprefix("s3://")] = StoredObject(path, of)

    async def put(self, request: web.Request) -> web.StreamResponse:
        name, service = self._enter("s3.put", request), self._service
        if service.strikes("no upload", service.config.batch_no_upload_share):
            raise Refused(refusals.failed())
        try:
            chunks = request.content.iter_chunked(CHUNK_BYTES)
            path = await service.folder.write(chunks, MAX_OBJECT_BYTES)
        except TooLarge:
            raise Refused(refusals.invalid("Too large.", code="EntityTooLarge")) from None
        if (before := self._objects.pop(name, None)) is not None:
            service.folder.remove(before.path)
        self._objects[name] = StoredObject(path)
        if service.strikes("upload", service.config.batch_upload_500_share):
            raise Refused(refusals.failed())
        return web.Response(headers={"ETag": f'"{uuid4().hex}"'})

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Return an object; of a HEAD aiohttp sends the headers alone."""
        found = self._objects.get(self._enter("s3.get", request))
        if found is None:
            raise Refused(refusals.invalid("The key does not exist.", code="NoSuchKey", status=404))
        if found.of is not None:
            return await download(self._service, request, found.of, found.path)
        return web.FileResponse(found.path)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete an object; one that is not there is deleted as well."""
        found = self._objects.pop(self._enter("s3.delete", request), None)
        if found is not None:
            self._service.folder.remove(found.path)
        return web.Response(status=204)

    def _enter(self, call: str, request: web.Request) -> str:
        if (fault := signing_fault(request.headers, "s3")) is not None:
            raise Refused(fault)
        self._service.enter(call, key_of(request.headers))
        return request.match_info["name"]


@dataclass(slots=True)
class Job:
    """A batch as it was asked for."""

    batch: Batch
    asked: Mapping[str, Any]
    uris: tuple[str, str]  # of its input, and of the folder of its output
    filed: bool = False  # whether its results have become an object


class BedrockJobs:
    """Handlers of aiohttp."""

    def __init__(self, service: BatchService, objects: Objects) -> None:
        self._service, self._objects = service, objects
        self._jobs: dict[str, Job] = {}

    def routes(self) -> list[web.RouteDef]:
        ident = "/model-invocation-job/{id:.+}"
        return [
            web.post("/model-invocation-job", self.create),
            web.get("/model-invocation-jobs", self.page),
            web.post(ident + "/stop", self.stop),
            web.get(ident, self.look),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create a job once for each token; faults of its input are found later."""
        self._enter("jobs.create", request, spends=True)
        asked, service = _asked(await request.read()), self._service
        token = asked.get("clientRequestToken", uuid4().hex)
        for known in self._jobs.values():
            if known.asked.get("clientRequestToken") != token:
                continue
            if dict(known.asked) != asked:
                told = "The token was used with other parameters."
                raise Refused(refusals.invalid(told, code="ConflictException", status=409))
            return json({"jobArn": ARN + known.batch.id})
        uris, model = _uris(asked), str(asked["modelId"])
        stored = self._objects.at(uris[0])
        if stored is None:
            raise Refused(
                refusals.invalid(f"{uris[0]}: there is no such object, or the role may not read it")
            )
        least = service.config.batch_min_records
        dialect = Dialect("bedrock", RecordReader(model, least), RecordWording(model), no_room)
        source = service.folder.link(stored.path)
        batch = service.submit(uuid4().hex[:12], dialect, source, asked["jobName"])
        batch.model = model
        self._jobs[batch.id] = Job(batch, {**asked, "clientRequestToken": token}, uris)
        if service.strikes("create", service.config.batch_create_500_share):
            raise Refused(refusals.failed())
        return json({"jobArn": ARN + batch.id})

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("jobs.list", request)
        wanted, query = request.query.get("nameContains", ""), request.query
        size, start = query.get("maxResults", "100"), query.get("nextToken", "0")
        if not size.isdecimal() or not 1 <= int(size) <= 1_000 or not start.isdecimal():
            raise Refused(refusals.invalid("maxResults or nextToken cannot be used."))
        found = [one for one in reversed(self._jobs.values()) if wanted in one.asked["jobName"]]
        ends = int(start) + int(size)
        rows = [await self._shown(one) for one in found[int(start) : ends]]
        more = {"nextToken": str(ends)} if ends < len(found) else {}
        return json({"invocationJobSummaries": rows} | more)

    async def look(self, request: web.Request) -> web.StreamResponse:
        self._enter("jobs.get", request)
        found = self._job(request)
        self._service.looked_at(found.batch)
        return json(await self._shown(found))

    async def stop(self, request: web.Request) -> web.StreamResponse:
        self._enter("jobs.stop", request)
        found = self._job(request)
        if not self._service.cancel(found.batch):
            told = "The job has ended, or is being stopped."
            raise Refused(refusals.invalid(told, code="ConflictException", status=409))
        return json({})

    def _enter(self, call: str, request: web.Request, *, spends: bool = False) -> None:
        if (fault := signing_fault(request.headers, "bedrock")) is not None:
            raise Refused(fault)
        self._service.enter(call, key_of(request.headers), spends=spends)

    def _job(self, request: web.Request) -> Job:
        found = self._jobs.get(request.match_info["id"].rpartition("/")[2])
        if found is None:
            raise Refused(refusals.invalid("The job was not found.", status=404))
        return found

    async def _shown(self, found: Job) -> dict[str, Any]:
        """Show a job; one that is over has its output by then."""
        batch, now = found.batch, self._service.now()
        results = await self._service.results(batch, now)
        if results is not None and results.answers is not None and not found.filed:
            found.filed = True
            name = found.uris[0].rpartition("/")[2]
            uri = f"{found.uris[1].rstrip('/')}/{batch.id}/{name}.out"
            self._objects.add(uri, results.answers, batch)
        counts, status = batch.counts(now), batch.timeline.status(now)
        shown: dict[str, Any] = {
            **found.asked,
            "jobArn": ARN + batch.id,
            "status": STATUSES[status],
            "submitTime": _timestamp(batch.timeline.created_at),
            "lastModifiedTime": _timestamp(batch.timeline.moments(now)[-1].at),
        }
        if status is Status.FAILED:
            shown["message"] = "; ".join(problem.message for problem in batch.problems)
        if counts.total:
            shown |= {
                "totalRecordCount": counts.total,
                "processedRecordCount": counts.good + counts.bad,
                "successRecordCount": counts.good,
                "errorRecordCount": counts.bad,
            }
        return shown


def _asked(raw: bytes) -> dict[str, Any]:
    """Return what a create asks for. Raises Refused."""
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise Refused(refusals.invalid("The body is not a JSON object."))
    forms = {"jobName": NAME, "roleArn": ROLE, "modelId": re.compile(".+")}
    forms |= {"clientRequestToken": TOKEN} if "clientRequestToken" in given else {}
    for name, form in forms.items():
        value = given.get(name)
        if not isinstance(value, str) or form.fullmatch(value) is None or len(value) > 2_048:
            raise Refused(refusals.invalid(f"Value at '{name}' failed to satisfy constraint."))
    if given.get("modelInvocationType") != "Converse":
        raise Refused(refusals.invalid("This simulator runs jobs of modelInvocationType Converse."))
    hours = given.get("timeoutDurationInHours", 24)
    if not isinstance(hours, int) or not 24 <= hours <= 168:
        raise Refused(refusals.invalid("timeoutDurationInHours: give 24 to 168."))
    return given


def _uris(asked: Mapping[str, Any]) -> tuple[str, str]:
    """Return the places of the input and the output. Raises Refused."""
    found = list[str]()
    for name in ("input", "output"):
        config = asked.get(f"{name}DataConfig")
        inner = config.get(f"s3{name.title()}DataConfig") if isinstance(config, dict) else None
        uri = inner.get("s3Uri") if isinstance(inner, dict) else None
        if not isinstance(uri, str) or URI.fullmatch(uri) is None:
            raise Refused(refusals.invalid(f"{name}DataConfig: {uri!r} is no S3 URI."))
        found.append(uri)
    if not found[0].endswith(".jsonl"):
        raise Refused(refusals.invalid("The input must end in .jsonl."))
    return found[0], found[1]


def _timestamp(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat().replace("+00:00", "Z")


def bedrock_routes(service: BatchService) -> list[web.RouteDef]:
    objects = Objects(service)
    jobs = BedrockJobs(service, objects).routes()
    return [
        *in_words_of(refusals.bedrock, jobs, refusals.amazon_header),
        *in_words_of(refusals.s3, objects.routes()),
    ]

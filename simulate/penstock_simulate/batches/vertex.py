"""Vertex AI's batch jobs, and the Cloud Storage beside them.

What Vertex checks, shows and writes is that of aiplatform v1 (projects.locations.
batchPredictionJobs) and of docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/
batch-prediction-from-cloud-storage. Of Cloud Storage there is what an object needs, by its JSON
API: an upload in one piece, a look, a list, a download and a deletion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.answers.calls import GENERATE, Call, misshapen
from penstock_simulate.answers.faults import document_of
from penstock_simulate.answers.refusals import Refusal, gemini
from penstock_simulate.answers.replies import answer_body
from penstock_simulate.batches.batch import Batch, Dialect, Refused
from penstock_simulate.batches.batch_service import BatchService
from penstock_simulate.batches.folder import TooLarge
from penstock_simulate.batches.gemini import no_room
from penstock_simulate.batches.gemini_files import key_of, page, timestamp
from penstock_simulate.batches.intake import Asked, Problem, Span, renamed, spans_of_lines
from penstock_simulate.batches.results import Undone
from penstock_simulate.batches.sent import CHUNK_BYTES, download, in_words_of, json
from penstock_simulate.batches.timeline import OVER, Status
from penstock_simulate.reply import Usage

MAX_OBJECT_BYTES = 1_000_000_000
STATES: Mapping[Status, str] = {
    Status.VALIDATING: "JOB_STATE_PENDING",
    Status.FAILED: "JOB_STATE_FAILED",
    Status.IN_PROGRESS: "JOB_STATE_RUNNING",
    Status.FINALIZING: "JOB_STATE_RUNNING",
    Status.CANCELLING: "JOB_STATE_CANCELLING",
    Status.COMPLETED: "JOB_STATE_SUCCEEDED",
    Status.EXPIRED: "JOB_STATE_EXPIRED",
    Status.CANCELLED: "JOB_STATE_CANCELLED",
}


def read_request(given: dict[str, Any], model: str) -> Asked:
    """Read a line; a document is known by the labels of its request, as nothing else names it."""
    labels = given["request"].get("labels")
    name = "-".join(labels.values()) if isinstance(labels, dict) and labels else "unlabelled"
    call = Call(GENERATE, b"", None, name, 1, document_of(name), model=model)
    return Asked(
        name, call, misshapen(call, given["request"]) is None, {"request": given["request"]}
    )


class VertexReader:
    """A line that is no request fails the job; a request that cannot be used fails alone."""

    def __init__(self, model: str) -> None:
        self.problems: list[Problem] = []
        self._model = model

    def spans(self, source: Path) -> Iterator[Span]:
        return spans_of_lines(source)

    def checked(self, raw: bytes, number: int) -> Asked | None:
        try:
            given = orjson.loads(raw)
        except orjson.JSONDecodeError:
            given = None
        if not isinstance(given, dict) or not isinstance(given.get("request"), dict):
            self.problems.append(Problem("INVALID_ARGUMENT", f"Line {number} has no request"))
            return None
        return read_request(given, self._model)

    def whole(self, requests: int) -> None:
        if requests == 0:
            self.problems.append(Problem("INVALID_ARGUMENT", "The input has no requests."))


class VertexWording:
    """One line for each request that the model got to, with the request in it."""

    apart = False

    def __init__(self, model: str) -> None:
        self._model = model

    def asked(self, raw: bytes) -> Asked:
        return read_request(orjson.loads(raw), self._model)

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
        body, usage = answer_body(asked.call)
        return _line(asked, "", orjson.Fragment(body)), usage

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes:
        return _line(asked, f"Error: {gemini(refusal, request_id)[1].decode()}", {})

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        if why is not Undone.TIMED_OUT:
            return b""
        return _line(asked, 'Deadline exceeded: {"error": {"code": 504}}', {})

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        return renamed(line, "request")


def _line(asked: Asked, status: str, response: Any) -> bytes:
    return orjson.dumps({"status": status, **asked.echo, "response": response})


@dataclass(slots=True)
class StoredObject:
    """An object of Cloud Storage. ``of`` is the batch whose results it holds."""

    path: Path
    of: Batch | None = None


class Objects:
    """Handlers of aiohttp, and the objects by bucket and name."""

    def __init__(self, service: BatchService) -> None:
        self._service = service
        self.stored: dict[tuple[str, str], StoredObject] = {}

    def routes(self) -> list[web.RouteDef]:
        one = "/storage/v1/b/{bucket}/o/{name:.+}"
        return [
            web.post("/upload/storage/v1/b/{bucket}/o", self.upload),
            web.get("/storage/v1/b/{bucket}/o", self.page),
            web.get(one, self.get),
            web.delete(one, self.delete),
        ]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        self._enter("gcs.insert", request)
        service, name = self._service, request.query.get("name", "")
        if service.strikes("no upload", service.config.batch_no_upload_share):
            raise Refused(refusals.failed())
        if request.query.get("uploadType") != "media" or not name:
            raise Refused(refusals.invalid("This simulator takes uploadType=media with a name."))
        try:
            chunks = request.content.iter_chunked(CHUNK_BYTES)
            path = await service.folder.write(chunks, MAX_OBJECT_BYTES)
        except TooLarge:
            raise Refused(refusals.invalid("Too large.", status=413)) from None
        place = (request.match_info["bucket"], name)
        if (before := self.stored.pop(place, None)) is not None:
            service.folder.remove(before.path)
        self.stored[place] = StoredObject(path)
        if service.strikes("upload", service.config.batch_upload_500_share):
            raise Refused(refusals.failed())
        return json(_shown(place))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("gcs.list", request)
        bucket, prefix = request.match_info["bucket"], request.query.get("prefix", "")
        found = [one for one in self.stored if one[0] == bucket and one[1].startswith(prefix)]
        return json({"items": [_shown(one) for one in found]} if found else {})

    async def get(self, request: web.Request) -> web.StreamResponse:
        place = self._place("gcs.get", request)
        found = self.stored.get(place)
        if found is None:
            raise Refused(refusals.invalid(f"No such object: {'/'.join(place)}", status=404))
        if request.query.get("alt") != "media":
            return json(_shown(place))
        if found.of is not None:
            return await download(self._service, request, found.of, found.path)
        return web.FileResponse(found.path)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        place = self._place("gcs.delete", request)
        found = self.stored.pop(place, None)
        if found is None:
            raise Refused(refusals.invalid(f"No such object: {'/'.join(place)}", status=404))
        self._service.folder.remove(found.path)
        return web.Response(status=204)

    def _place(self, call: str, request: web.Request) -> tuple[str, str]:
        self._enter(call, request)
        return request.match_info["bucket"], request.match_info["name"]

    def _enter(self, call: str, request: web.Request) -> None:
        self._service.enter(call, key_of(request))


def _shown(place: tuple[str, str]) -> dict[str, str]:
    return {"kind": "storage#object", "bucket": place[0], "name": place[1]}


@dataclass(slots=True)
class Job:
    """A batch as it was asked for."""

    batch: Batch
    parent: str
    asked: Mapping[str, Any]
    folder: tuple[str, str]  # of its output: bucket and prefix
    filed: bool = False  # whether its results have become an object


class VertexJobs:
    """Handlers of aiohttp."""

    def __init__(self, service: BatchService, objects: Objects) -> None:
        self._service, self._objects = service, objects
        self._jobs: dict[str, Job] = {}

    def routes(self) -> list[web.RouteDef]:
        every = "/v1/projects/{project}/locations/{location}/batchPredictionJobs"
        one = every + "/{id:[^/:]+}"
        return [
            web.post(every, self.create),
            web.get(every, self.page),
            web.get(one, self.look),
            web.post(one + ":cancel", self.cancel),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create a job; faults of its input are found later. The same twice is two jobs."""
        self._enter("jobs.create", request, spends=True)
        asked, service = _asked(await request.read()), self._service
        model, source = asked["model"].rpartition("/")[2], _place(asked["inputConfig"])
        stored = self._objects.stored.get(source)
        if stored is None:
            raise Refused(refusals.invalid(f"There is no object gs://{'/'.join(source)}"))
        dialect = Dialect("vertex", VertexReader(model), VertexWording(model), no_room)
        kept = service.folder.link(stored.path)
        batch = service.submit(str(uuid4().int % 10**19), dialect, kept, asked["displayName"])
        batch.model = model
        parent = "projects/{project}/locations/{location}".format(**request.match_info)
        made = self._jobs[batch.id] = Job(batch, parent, asked, _folder(asked, batch.id))
        if service.strikes("create", service.config.batch_create_500_share):
            raise Refused(refusals.failed())
        return json(await self._shown(made))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("jobs.list", request)
        wanted = request.query.get("filter", "")
        found = {
            ident: one
            for ident, one in reversed(self._jobs.items())
            if not wanted or wanted == f'displayName="{one.asked["displayName"]}"'
        }
        names, token = page(list(found), request, 100, 1_000)
        rows = [await self._shown(found[name]) for name in names]
        return json({"batchPredictionJobs": rows} | ({"nextPageToken": token} if token else {}))

    async def look(self, request: web.Request) -> web.StreamResponse:
        self._enter("jobs.get", request)
        found = self._job(request)
        self._service.looked_at(found.batch)
        return json(await self._shown(found))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        self._enter("jobs.cancel", request)
        if not self._service.cancel(self._job(request).batch):
            raise Refused(refusals.invalid("The job has ended, or is being cancelled."))
        return json({})

    def _enter(self, call: str, request: web.Request, *, spends: bool = False) -> None:
        self._service.enter(call, key_of(request), spends=spends)

    def _job(self, request: web.Request) -> Job:
        found = self._jobs.get(request.match_info["id"])
        if found is None:
            raise Refused(refusals.invalid("The BatchPredictionJob does not exist.", status=404))
        return found

    async def _shown(self, found: Job) -> dict[str, Any]:
        """Show a job; one that is over has its output by then."""
        batch, now = found.batch, self._service.now()
        results, (bucket, folder) = await self._service.results(batch, now), found.folder
        if results is not None and results.answers is not None and not found.filed:
            found.filed = True
            place = (bucket, folder + "predictions.jsonl")
            self._objects.stored[place] = StoredObject(results.answers, batch)
        counts, status = batch.counts(now), batch.timeline.status(now)
        left = counts.total - counts.good - counts.bad
        stats = {"successfulCount": counts.good, "failedCount": counts.bad, "incompleteCount": left}
        shown: dict[str, Any] = {
            **found.asked,
            "name": f"{found.parent}/batchPredictionJobs/{batch.id}",
            "state": STATES[status],
            "createTime": timestamp(batch.timeline.created_at),
        }
        if counts.total:
            shown["completionStats"] = {name: str(number) for name, number in stats.items()}
        if status in OVER and found.filed:
            shown["outputInfo"] = {"gcsOutputDirectory": f"gs://{bucket}/{folder.rstrip('/')}"}
        if status is Status.FAILED:
            shown["error"] = {"code": 3, "message": batch.problems[0].message}
        return shown


def _asked(raw: bytes) -> dict[str, Any]:
    """Return what a create asks for. Raises Refused."""
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict) or not isinstance(given.get("displayName"), str):
        raise Refused(refusals.invalid("displayName is required."))
    if not isinstance(given.get("model"), str) or "/models/" not in given["model"]:
        raise Refused(refusals.invalid(f"model: {given.get('model')!r} is no resource name."))
    for name, form in (("inputConfig", "instancesFormat"), ("outputConfig", "predictionsFormat")):
        config = given.get(name)
        if not isinstance(config, dict) or config.get(form) != "jsonl":
            raise Refused(refusals.invalid(f"{name}.{form}: this simulator takes jsonl."))
    return given


def _place(config: Mapping[str, Any]) -> tuple[str, str]:
    source = config.get("gcsSource")
    uris = source.get("uris") if isinstance(source, dict) else None
    if not isinstance(uris, list) or len(uris) != 1:
        raise Refused(refusals.invalid("inputConfig.gcsSource.uris: give one."))
    bucket, _, name = str(uris[0]).removeprefix("gs://").partition("/")
    return bucket, name


def _folder(asked: Mapping[str, Any], ident: str) -> tuple[str, str]:
    """Return the folder that a job makes for its output."""
    prefix = str(asked["outputConfig"].get("gcsDestination", {}).get("outputUriPrefix", ""))
    bucket, _, name = prefix.removeprefix("gs://").partition("/")
    if not bucket:
        raise Refused(refusals.invalid("outputConfig.gcsDestination.outputUriPrefix is required."))
    return bucket, f"{name.rstrip('/')}/prediction-model-{ident}/".lstrip("/")


def vertex_routes(service: BatchService) -> list[web.RouteDef]:
    objects = Objects(service)
    made = [*VertexJobs(service, objects).routes(), *objects.routes()]
    return in_words_of(refusals.gemini, made)

"""The app: routers for requests, tasks for the work beside them, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

import orjson
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.backend import Backend
from penstock_gateway.bodies import Bodies
from penstock_gateway.callers.admission import Admissions, Gate
from penstock_gateway.callers.known_keys import KnownKeys
from penstock_gateway.errors import answer_to, is_anthropic_path, is_problem_path, refused_for
from penstock_gateway.jobs.events import Watches
from penstock_gateway.metrics import DoorMetrics, metrics_of
from penstock_gateway.middleware import Paths, RequestIds, Room, request_id_of, shown_path
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import PenstockError
from penstock_ledger.telemetry.metrics import push_metrics

__all__ = ["ROUTERS", "TASKS", "Doors", "Task", "create_app", "running"]

_METHODS: Final = frozenset({"get", "put", "post", "delete", "patch", "head", "options"})
_TAGS: Final = (
    (
        "jobs",
        "Jobs: submit, push, watch, control, read results. Errors are problem details (RFC 9457).",
    ),
    ("schedules", "Jobs that start themselves, and notifications of buckets."),
    ("limits", "What keeps requests to the providers from starting."),
    ("keys", "API keys: make, list, revoke."),
)
_SCHEMES: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, as OpenAI's clients send it.",
    },
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "An API key, as Anthropic's clients send it.",
    },
}
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do."},
        "code": {"type": "string", "description": "A stable code for programs."},
        "param": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "Each field that is wrong.",
            "items": {
                "type": "object",
                "required": ["code", "pointer", "message", "fix"],
                "properties": {
                    name: {"type": "string"} for name in ("code", "pointer", "message", "fix")
                },
            },
        },
    },
    "example": {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "code": "unknown_field",
        "param": "promt",
        "detail": "job spec: /promt: unknown_field; did you mean 'prompt'?",
        "request_id": "req_0a1b2c",
        "errors": [
            {
                "code": "unknown_field",
                "pointer": "/promt",
                "message": "the value is refused",
                "fix": "did you mean 'prompt'?",
            }
        ],
    },
}
_OPENAI: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC: Final = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
_ERRORS: Final = {
    "400": "A field, or the content, cannot be used.",
    "401": "There is no API key, or it is not valid.",
    "403": "The key may not do that.",
    "404": "There is no such thing for this caller.",
    "408": "The body did not come in time.",
    "409": "Its state does not allow this, or the name is taken by something else.",
    "413": "The body is too large.",
    "415": "The body is of another type.",
    "429": "A limit of the key is reached; see Retry-After.",
    "503": "A server behind this one does not answer, or there is too much to do; see Retry-After.",
}


class Doors(FastAPI):
    """The app, whose document says what every door shares."""

    _document: bytes | None = None

    def setup(self) -> None:
        """Serve the document as it was written once: no key is needed for it.

        Writing it takes as long as fifty requests."""

        async def document(_: Request) -> Response:
            if self._document is None:
                self._document = orjson.dumps(self.openapi())
            return Response(self._document, media_type="application/json")

        self.add_route("/openapi.json", document, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = _completed(super().openapi())
        return self.openapi_schema


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas |= {"Problem": _PROBLEM, "OpenAIError": _OPENAI, "AnthropicError": _ANTHROPIC}
    parts["securitySchemes"] = _SCHEMES
    document["security"] = [{name: []} for name in _SCHEMES]
    document["tags"] = [{"name": name, "description": text} for name, text in _TAGS]
    for path, operation in _operations(document):
        _complete(path, operation)
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document.get("paths", {}).items():
        yield from (
            (path, operation) for method, operation in methods.items() if method in _METHODS
        )


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add every error that a caller may get.

    What the framework would answer by itself it does not here."""
    answers = operation["responses"]
    answers.pop("422", None)
    name, kind = "OpenAIError", "application/json"
    if is_problem_path(path):
        name, kind = "Problem", "application/problem+json"
    elif is_anthropic_path(path):
        name = "AnthropicError"
    for status, words in _ERRORS.items():
        content = {kind: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        answers.setdefault(status, {"description": words, "content": content})


log = logging.getLogger("penstock.gateway")

FIRST_PAUSE_S: Final = 1.0  # after a failure; doubles with each further one
MOST_PAUSE_S: Final = 60.0
END_S: Final = 10.0  # for which the end of the server waits for them


class Task(Protocol):
    """A piece of it.

    ``run`` goes on for ever, with a named pause between its rounds, and calls
    ``backend.round_done(self)`` after each that went well."""

    async def run(self, backend: Backend) -> None: ...


@contextlib.asynccontextmanager
async def running(
    tasks: Iterable[Task], backend: Backend, metrics: DoorMetrics
) -> AsyncIterator[None]:
    """Run all tasks for as long as the block lasts."""
    tasks = list(tasks)
    for task in tasks:
        name = type(task).__name__
        metrics.tasks.failures.labels(name)  # 0 until it fails
        metrics.tasks.round.labels(name)  # 0 until its first round
    started = [
        asyncio.create_task(_kept_running(task, backend, metrics), name=type(task).__name__)
        for task in tasks
    ]
    try:
        yield
    finally:
        for one in started:
            one.cancel()
        if started:
            await asyncio.wait(started, timeout=END_S)


async def _kept_running(task: Task, backend: Backend, metrics: DoorMetrics) -> None:
    pause_s, failed = FIRST_PAUSE_S, ""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            await task.run(backend)
        except Exception as error:
            metrics.tasks.failures.labels(type(task).__name__).inc()
            if repr(error) != failed:  # once, not every second for as long as a server is away
                log.warning(
                    "%s has failed and goes on in %g s",
                    type(task).__name__,
                    pause_s,
                    exc_info=error,
                )
            failed = repr(error)
        if loop.time() - began > MOST_PAUSE_S:
            pause_s, failed = FIRST_PAUSE_S, ""
        await asyncio.sleep(pause_s)
        pause_s = min(MOST_PAUSE_S, pause_s * 2)


# One line per router, module:name. Their order is that of the OpenAPI document.
ROUTERS: Final[tuple[str, ...]] = (
    "penstock_gateway.serve:router",
    "penstock_gateway.files.routes:router",
    "penstock_gateway.batches.routes:router",
    "penstock_gateway.batches.anthropic:router",
    "penstock_gateway.direct.routes:router",
    "penstock_gateway.direct.models:router",
    "penstock_gateway.jobs.submitting:router",
    "penstock_gateway.jobs.listing:router",
    "penstock_gateway.jobs.reports:router",
    "penstock_gateway.jobs.samples:router",
    "penstock_gateway.jobs.control:router",
    "penstock_gateway.jobs.results:router",
    "penstock_gateway.jobs.dead_letters:router",
    "penstock_gateway.jobs.events:router",
    "penstock_gateway.jobs.schedules:router",
    "penstock_gateway.limits:router",
    "penstock_gateway.webhooks:router",
    "penstock_gateway.keys:router",
    "penstock_gateway.dashboard.routes:router",
)

# One line per piece of background work: module:class of a Task.
TASKS: Final[tuple[str, ...]] = (
    "penstock_gateway.news:LookForNews",
    "penstock_gateway.files.uploads:FileCleaning",
    "penstock_gateway.batches.steps:BatchStates",
    "penstock_gateway.webhook_delivery:WebhookSending",
    "penstock_gateway.direct.calls:FetchAnswers",
    "penstock_gateway.direct.calls:CloseOldCalls",
    # callers
    "penstock_gateway.callers.admission:RenewAdmissions",
)


_REFUSALS: Final = (PenstockError, HTTPException, RequestValidationError)


def create_app(settings: GatewaySettings, *, extra: Sequence[APIRouter] = ()) -> FastAPI:
    """Return the doors as an ASGI app; ``extra`` are routers on top."""
    app = Doors(
        title="Penstock",
        version="1",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(settings),
        redirect_slashes=False,
    )
    app.state.metrics = DoorMetrics()
    for name in ROUTERS:
        app.include_router(_named(name))
    for router in extra:
        app.include_router(router)
    for kind in _REFUSALS:
        app.add_exception_handler(kind, _answer)
    # the last one here is the first that a request passes
    short_way = _named("penstock_gateway.direct.routes:ShortWay")
    app.add_middleware(short_way, refusals=_REFUSALS, answer=_answer)
    app.add_middleware(Bodies, door=settings.gateway)
    app.add_middleware(Room, settings=settings)
    app.add_middleware(Gate)
    app.add_middleware(Paths)
    app.add_middleware(RequestIds)
    return app


def _lifespan(settings: GatewaySettings) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # around all else: the last push has what was counted until the end
        with push_metrics(app.state.metrics.registry, "penstock-gateway"):
            backend = app.state.backend = Backend(settings, app.state.metrics)
            app.state.keys, app.state.admissions = KnownKeys(backend), Admissions(backend)
            app.state.watches = Watches(backend)
            try:
                async with running([_named(name)() for name in TASKS], backend, app.state.metrics):
                    yield
            finally:
                await backend.close()

    return lifespan


async def _answer(request: Request, error: Exception) -> Response:
    refused, request_id = refused_for(error), request_id_of(request)
    if refused.status >= 500 and not isinstance(error, Refused):
        log.error("%s %s: %s (%s)", request.method, shown_path(request.scope), error, request_id)
    metrics_of(request).requests.refused(refused.code)
    return answer_to(refused, request.scope["path"], request_id)


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)

"""The routes of calls that wait: chats, messages, responses, embeddings, and several in one."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import orjson
from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock_gateway.backend import backend_of
from penstock_gateway.bodies import object_of
from penstock_gateway.callers.admission import Shares
from penstock_gateway.callers.caller import Caller, caller_with
from penstock_gateway.direct.calls import Asked, CallAnswer, Calls
from penstock_gateway.direct.errors import refused_for_dead_letter
from penstock_gateway.direct.fields import (
    Stream,
    checked_body,
    invalid,
    stream_of,
    unsupported,
    with_messages,
)
from penstock_gateway.direct.schemas import PROMPTS, documented
from penstock_gateway.direct.streams import AnswerStream, LiveAnswer, something_of
from penstock_gateway.middleware import request_id_of
from penstock_gateway.refused import Refused
from penstock_gateway.routing import JsonRequest, Router
from penstock_gateway.settings import DirectFields
from penstock_ledger.lone_surrogates import parse_json
from penstock_ledger.model import DeadLetter, Result
from penstock_producer.dialects.translation import Untranslatable, answer_for
from penstock_producer.job.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES

__all__ = ["ShortWay", "bodies_of", "gone", "key_of"]

TIMEOUT_HEADER: Final = "x-penstock-timeout"
KEY_HEADER: Final = "idempotency-key"
KEY_CHARS: Final = 255


class Read(NamedTuple):
    given: dict[str, Any]
    size: int  # bytes


async def object_in(request: Request, most_bytes: int) -> Read:
    """Return the JSON of a body, which may have a bound below that of all bodies.

    Raises Refused (400, 413)."""
    size = len(await request.body())
    if size > most_bytes:
        raise Refused(413, f"The body has more than {most_bytes} bytes.", code="request_too_large")
    return Read(object_of(await request.json()), size)


def timeout_of(request: Request, limits: DirectFields) -> float:
    """Return the seconds for which the caller waits. Raises Refused."""
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return min(limits.timeout_s, limits.max_timeout_s)
    try:
        seconds = float(text) if len(text) <= 20 else math.nan
    except ValueError:
        seconds = math.nan
    return checked_timeout(seconds, "X-Penstock-Timeout", limits)


def checked_timeout(seconds: object, name: str, limits: DirectFields) -> float:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds <= limits.max_timeout_s
    ):
        raise invalid(name, f"give seconds, more than 0 and at most {limits.max_timeout_s:g}")
    return float(seconds)


def key_of(request: Request) -> str | None:
    """Return the idempotency key of a request, if any. Raises Refused."""
    key = request.headers.get(KEY_HEADER)
    if key is not None and (
        not 0 < len(key) <= KEY_CHARS or not key.isascii() or not key.isprintable()
    ):
        raise invalid("Idempotency-Key", f"give 1 to {KEY_CHARS} printable ASCII characters")
    return key


async def gone(request: Request) -> None:
    """Return when the caller has hung up; the body has been read before.

    Never returns where the server does not say."""
    while True:
        try:
            message = await request.receive()
        except Exception:  # the server says no more about this connection
            await asyncio.Event().wait()
            return
        if message["type"] == "http.disconnect":
            return


# of what all prompts of a call have alike, once for each of them
SHARED_BYTES: Final = 64 * 1024 * 1024
_OWN: Final = frozenset({"prompts", "system", "timeout_s"})
_USAGE: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


def bodies_of(given: Mapping[str, Any], limits: DirectFields) -> list[dict[str, Any]]:
    """Return the body of each prompt's request. Raises Refused."""
    prompts, system = given.get("prompts"), given.get("system")
    if prompts is None:
        raise Refused(
            400,
            "Missing required parameter: 'prompts'.",
            code="missing_required_parameter",
            param="prompts",
        )
    if not isinstance(prompts, list) or not 0 < len(prompts) <= limits.batch_prompts:
        raise invalid("prompts", f"give a list of 1 to {limits.batch_prompts} prompts")
    if system is not None and not isinstance(system, str):
        raise invalid("system", "give text", "invalid_type")
    if "messages" in given:
        raise invalid("messages", "give `prompts`: each may be a list of messages")
    if given.get("stream"):
        raise unsupported("stream", "several prompts are answered together: leave `stream` out")
    shared = {name: value for name, value in given.items() if name not in _OWN}
    first = [] if system is None else [{"role": "system", "content": system}]
    _check_shared(len(orjson.dumps([shared, first])), len(prompts))
    bodies = list[dict[str, Any]]()
    for at, prompt in enumerate(prompts):
        bodies.append(_body(at, prompt, bodies[0] if bodies else shared, first, limits))
    return bodies


def _check_shared(size: int, prompts: int) -> None:
    if size * prompts > SHARED_BYTES:
        told = (
            f"What all {prompts} prompts share has {size:,} bytes and would be sent with each: "
            f"more than {SHARED_BYTES:,} "
        )
        raise Refused(413, f"{told}in all. Send fewer prompts at once.", code="request_too_large")


def _body(
    at: int,
    prompt: object,
    shared: Mapping[str, Any],
    first: list[dict[str, Any]],
    limits: DirectFields,
) -> dict[str, Any]:
    """Return the body for one prompt.

    ``shared`` is what was checked with the first prompt, or what is to be.
    """
    if isinstance(prompt, str) and prompt:
        messages = [*first, {"role": "user", "content": prompt}]
    elif isinstance(prompt, list):
        messages = [*first, *prompt]
    else:
        raise invalid(
            f"prompts[{at}]", "give text that is not empty, or a list of messages", "invalid_type"
        )
    try:
        if at:
            return with_messages(shared, messages, limits)
        return checked_body({**shared, "messages": messages}, CHAT, limits)
    except Refused as refused:
        if refused.param is None or not refused.param.startswith("messages"):
            raise
        param = f"prompts[{at}]{refused.param.removeprefix('messages')}"
        raise Refused(
            400, refused.message.replace(refused.param, param), code=refused.code, param=param
        ) from None


def batch_answer(told: CallAnswer, model: str) -> dict[str, Any]:
    """Return the JSON of the answer to several prompts.

    ``tokens_per_second`` are completion tokens by the time that the caller waited.
    """
    outputs = [_output(at, told) for at in range(len(told.outcomes))]
    usage = {name: sum((one["usage"] or {}).get(name, 0) for one in outputs) for name in _USAGE}
    succeeded = sum(one["error"] is None for one in outputs)
    return {
        "id": told.name,
        "object": "batch.sync",
        "model": model,
        "outputs": outputs,
        "usage": usage,
        "counts": {
            "total": len(outputs),
            "succeeded": succeeded,
            "failed": len(outputs) - succeeded,
        },
        "took_s": round(told.took_s, 3),
        "tokens_per_second": round(usage["completion_tokens"] / told.took_s, 1)
        if told.took_s
        else None,
    }


def _output(at: int, told: CallAnswer) -> dict[str, Any]:
    outcome = told.outcomes[at]
    empty: dict[str, Any] = {
        "index": at,
        "text": None,
        "finish_reason": None,
        "message": None,
        "usage": None,
    }
    if isinstance(outcome, Result):
        return {**empty, **_read(outcome), "error": None}
    refused = told.late if outcome is None else refused_for_dead_letter(outcome)
    assert refused is not None, "an outcome is missing, and a reason for it"
    return {
        **empty,
        "error": {"message": refused.message, "code": refused.code, "status": refused.status},
    }


def _read(result: Result) -> dict[str, Any]:
    """Read the first choice of an answer.

    Where the provider's answer has no form that is known, its text is missing and no error is made
    of that.
    """
    with contextlib.suppress(Untranslatable):
        return _of_chat(parse_json(answer_for(CHAT, result.body, time.time())))
    return {}


def _of_chat(found: Mapping[str, Any]) -> dict[str, Any]:
    choices = found.get("choices")
    choice = (
        choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    )
    message = choice.get("message")
    usage = found.get("usage")
    return {
        "text": message.get("content") if isinstance(message, dict) else None,
        "finish_reason": choice.get("finish_reason"),
        "message": message if isinstance(message, dict) else None,
        "usage": _counted(usage) if isinstance(usage, dict) else None,
    }


def _counted(usage: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: usage[name] for name in _USAGE if type(usage.get(name)) is int and usage[name] >= 0
    }


router = Router(tags=["direct"])

_may: Final = caller_with("infer")
May = Annotated[Caller, Depends(_may)]


@router.post(CHAT, operation_id="create_chat_completion", **documented(CHAT))
async def chat_completions(request: Request, caller: May) -> Response:
    """Answer a chat completion, as OpenAI's API has it.

    Answered by the fleet, recorded like a document of a job."""
    return await _one(request, caller, CHAT)


@router.post(COMPLETIONS, operation_id="create_completion", **documented(COMPLETIONS))
async def completions(request: Request, caller: May) -> Response:
    """Answer one completion of a prompt, as OpenAI's API has it."""
    return await _one(request, caller, COMPLETIONS)


@router.post(EMBEDDINGS, operation_id="create_embeddings", **documented(EMBEDDINGS))
async def embeddings(request: Request, caller: May) -> Response:
    """Return the embeddings of one input, or of several, as OpenAI's API has it."""
    return await _one(request, caller, EMBEDDINGS)


@router.post(MESSAGES, operation_id="create_message", **documented(MESSAGES))
async def messages(request: Request, caller: May) -> Response:
    """Answer a message, as Anthropic's API has it, whatever API the provider behind has."""
    return await _one(request, caller, MESSAGES)


@router.post(RESPONSES, operation_id="create_response", **documented(RESPONSES))
async def responses(request: Request, caller: May) -> Response:
    """Answer a response, as OpenAI's API has it, whatever API the provider behind has."""
    return await _one(request, caller, RESPONSES)


@router.post(PROMPTS, operation_id="answer_prompts", **documented(PROMPTS))
async def batch_sync(request: Request, caller: May) -> Response:
    """Answer several prompts together: outputs in their order, each with a text or an error."""
    backend = backend_of(request)
    limits = backend.settings.gateway.direct
    given, size = await object_in(request, limits.batch_bytes)
    bodies = await backend.run_sized(size, bodies_of, given, limits)
    timeout_s = timeout_of(request, limits)
    if given.get("timeout_s") is not None:
        timeout_s = checked_timeout(given["timeout_s"], "timeout_s", limits)
    asked = Asked(caller, CHAT, bodies, size, timeout_s, key_of(request))
    told = await backend.part(Calls).answered(asked, partial(gone, request))
    return _answer(orjson.dumps(batch_answer(told, asked.model)), told)


class ShortWay:
    """A step of the app, the last before its routes: calls go to theirs past the framework.

    Looking for the route, its dependencies and stacks of exits costs as much of the event loop as
    all that is done for a call, which needs none of it."""

    def __init__(
        self,
        app: ASGIApp,
        refusals: tuple[type[Exception], ...],
        answer: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        """Take ``answer``, which the framework would ask for an answer to ``refusals``."""
        self._app, self._refusals, self._answer = app, refusals, answer
        self._routes = {one.path: one for one in router.routes if isinstance(one, APIRoute)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope.get("path", "")) if scope["type"] == "http" else None
        if route is None or scope["method"] not in route.methods:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = JsonRequest(scope, receive)
        try:
            answer: Response = await route.endpoint(request, await _may(request))
        except self._refusals as error:
            answer = await self._answer(request, error)
            error.__traceback__ = None  # some are raised again, and frames hold bodies
        await answer(scope, receive, send)


async def _one(request: Request, caller: Caller, endpoint: str) -> Response:
    backend = backend_of(request)
    settings = backend.settings
    given, size = await object_in(
        request, min(settings.gateway.max_body_bytes, settings.max_body_bytes)
    )
    body = await backend.run_sized(size, checked_body, given, endpoint, settings.gateway.direct)
    stream = stream_of(given)
    timeout_s = timeout_of(request, settings.gateway.direct)
    asked = Asked(caller, endpoint, [body], size, timeout_s, key_of(request))
    if stream is not None:
        return await _streamed(request, asked, stream)
    answer, told = await _answered(request, asked)
    return _answer(answer, told)


async def _answered(request: Request, asked: Asked) -> tuple[bytes, CallAnswer]:
    """Return the answer to one request as its caller's client reads it. Raises Refused."""
    backend = backend_of(request)
    told = await backend.part(Calls).answered(asked, partial(gone, request))
    outcome = told.outcomes[0]
    if isinstance(outcome, Result):
        size = len(outcome.body)
        return await backend.run_sized(size, _in_words_of, asked, outcome), told
    refused = refused_for_dead_letter(outcome) if isinstance(outcome, DeadLetter) else told.late
    assert refused is not None, "an outcome is missing, and a reason for it"
    refused.headers = {**(refused.headers or {}), **_headers(told)}
    raise refused


async def _streamed(request: Request, asked: Asked, stream: Stream) -> Response:
    """Answer by events: as they are passed on, or those of the whole answer where it comes soon.

    What is refused soon is answered with its status, as clients act on it.
    """
    backend = backend_of(request)
    shares, tenant = backend.part(Shares), asked.caller.tenant

    live = LiveAnswer(asked.endpoint, asked.bodies[0], with_usage=stream.with_usage)

    async def events() -> tuple[bytes, CallAnswer]:
        answer, told = await _answered(request, replace(asked, live=live))
        live.end()
        return await backend.run_sized(len(answer), live.rest, answer), told

    shares.take("streams", tenant)
    coming = asyncio.create_task(events(), name="streamed answer")
    try:
        await something_of(coming, live, SOON_S)
        if not coming.done():
            leave = partial(shares.leave, "streams", tenant)
            return AnswerStream(coming, live, asked.endpoint, request_id_of(request), leave)
        written, told = coming.result()
    except BaseException:
        coming.cancel()
        shares.leave("streams", tenant)
        raise
    shares.leave("streams", tenant)
    return Response(written, media_type=AnswerStream.media_type, headers=_headers(told))


SOON_S: Final = 5.0  # a provider that refuses has mostly done so; no proxy gives up before


def _in_words_of(asked: Asked, result: Result) -> bytes:
    """Return an answer as the caller's client reads it. Raises Refused (502)."""
    try:
        return answer_for(asked.endpoint, result.body, time.time(), asked.bodies[0])
    except Untranslatable as error:
        raise Refused(502, f"{error}; it is kept in its job", code="invalid_answer") from None


def _answer(body: bytes, told: CallAnswer) -> Response:
    return Response(body, media_type="application/json", headers=_headers(told))


def _headers(told: CallAnswer) -> dict[str, str]:
    headers = {"x-penstock-job": told.job_id, "x-penstock-document": told.name}
    return headers | {"idempotent-replayed": "true"} if told.replayed else headers

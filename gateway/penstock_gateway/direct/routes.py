"""The routes of calls that wait: OpenAI's chat completions, completions and embeddings, and several
prompts in one call."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import orjson
from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.backend import backend_of
from penstock_gateway.callers.caller import Caller, caller_with
from penstock_gateway.direct.batch import batch_answer, bodies_of
from penstock_gateway.direct.calls import Asked, Calls, Told
from penstock_gateway.direct.fields import CHAT, COMPLETIONS, EMBEDDINGS, checked_body
from penstock_gateway.direct.requests import checked_timeout, gone, key_of, object_in, timeout_of
from penstock_gateway.direct.told import refused_for_letter
from penstock_gateway.routing import Router
from penstock_ledger.model import DeadLetter, Result

router = Router(tags=["direct"])

May = Annotated[Caller, Depends(caller_with("infer"))]

_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"description": "a field is missing, wrong or not taken here"},
    409: {"description": "a request with this Idempotency-Key is under way"},
    422: {"description": "this Idempotency-Key was used for another request"},
    429: {"description": "too many calls wait, or the provider limits this server"},
    503: {"description": "no worker, or a store is away"},
    504: {"description": "no answer in the time that the call had"},
}


@router.post(CHAT, responses=_ERRORS, operation_id="create_chat_completion")
async def chat_completions(request: Request, caller: May) -> Response:
    """One chat completion, as OpenAI's API has it; answered by the fleet, recorded like a document
    of a job."""
    return await _one(request, caller, CHAT)


@router.post(COMPLETIONS, responses=_ERRORS, operation_id="create_completion")
async def completions(request: Request, caller: May) -> Response:
    """One completion of a prompt, as OpenAI's API has it."""
    return await _one(request, caller, COMPLETIONS)


@router.post(EMBEDDINGS, responses=_ERRORS, operation_id="create_embeddings")
async def embeddings(request: Request, caller: May) -> Response:
    """The embeddings of one input, or of several, as OpenAI's API has it."""
    return await _one(request, caller, EMBEDDINGS)


@router.post("/v1/batch/sync", responses=_ERRORS, operation_id="answer_prompts")
async def batch_sync(request: Request, caller: May) -> Response:
    """Several prompts, answered together: outputs in their order, each with its text or its
    error."""
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


async def _one(request: Request, caller: Caller, endpoint: str) -> Response:
    backend = backend_of(request)
    settings = backend.settings
    given, size = await object_in(
        request, min(settings.gateway.max_body_bytes, settings.max_body_bytes)
    )
    body = await backend.run_sized(size, checked_body, given, endpoint, settings.gateway.direct)
    asked = Asked(
        caller,
        endpoint,
        [body],
        size,
        timeout_of(request, settings.gateway.direct),
        key_of(request),
    )
    told = await backend.part(Calls).answered(asked, partial(gone, request))
    outcome = told.outcomes[0]
    if isinstance(outcome, Result):
        return _answer(outcome.body, told)
    refused = refused_for_letter(outcome) if isinstance(outcome, DeadLetter) else told.late
    assert refused is not None, "an outcome is missing, and a reason for it"
    refused.headers = {**(refused.headers or {}), **_headers(told)}
    raise refused


def _answer(body: bytes, told: Told) -> Response:
    return Response(body, media_type="application/json", headers=_headers(told))


def _headers(told: Told) -> dict[str, str]:
    headers = {"x-penstock-job": told.job_id, "x-penstock-document": told.name}
    return headers | {"idempotent-replayed": "true"} if told.replayed else headers

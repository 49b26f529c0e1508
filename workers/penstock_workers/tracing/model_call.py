"""The span of one call to a model, by OpenTelemetry's conventions for generative AI.

It has numbers and names, never texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import orjson

from penstock_producer.feed.tracing import SpanContext
from penstock_ratelimit import profile_for
from penstock_workers.item.attempt import Attempt, Marks
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.lanes.registry import lane_row
from penstock_workers.settings import ProviderSettings, WorkerSettings
from penstock_workers.tracing.spans import Kind, Span, Value, short

GIVEN_UP = "given_up"  # the worker ended the call: it drains, or the item was revoked
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
# Metering profiles whose name is not OpenTelemetry's name of the provider.
_PROVIDERS = {"azure": "azure.ai.openai", "bedrock": "aws.bedrock", "gemini": "gcp.gemini"}
_ASKED = (
    (
        "gen_ai.request.max_tokens",
        ("max_completion_tokens", "max_tokens", "max_output_tokens"),
        int,
    ),
    ("gen_ai.request.temperature", ("temperature",), float),
    ("gen_ai.request.top_p", ("top_p",), float),
)


class ModelCalls:
    """Makes the spans of one lane's calls. ``settings`` say where they go."""

    def __init__(self, settings: WorkerSettings) -> None:
        row = lane_row(settings.lane)
        self._engine = row.engine
        self._engine_url = None if row.engine_url is None else row.engine_url(settings)

    def span(
        self, attempt: Attempt, marks: Marks, context: SpanContext, parent: SpanContext
    ) -> Span:
        """CLIENT in all lanes: the caller's view, wherever the model runs."""
        fields = _fields(attempt.body)
        operation = _operation(attempt.job.spec.endpoint)
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": operation,
            **self._whom(attempt.job.provider, attempt),
        }
        model = fields.get("model") or attempt.job.spec.model
        if isinstance(model, str):
            attributes["gen_ai.request.model"] = short(model)
        attributes.update(_asked(fields))
        attributes.update(_answered(attempt.happened))
        return Span(
            f"{operation} {attributes.get('gen_ai.request.model', '')}".rstrip(),
            Kind.CLIENT,
            context,
            parent,
            marks["called"],
            marks.get("answered", marks["decided"]),
            attributes,
            error="error.type" in attributes,
        )

    def _whom(self, provider: ProviderSettings, attempt: Attempt) -> Mapping[str, Value]:
        if self._engine is None:
            name = profile_for(provider.base_url, provider.profile).name
            known = attempt.job.spec.provider if name == "generic" else _PROVIDERS.get(name, name)
            return {"gen_ai.provider.name": known, **_server(provider.base_url)}
        return {
            "gen_ai.provider.name": self._engine,
            **(_server(self._engine_url) if self._engine_url else {}),
        }


def _operation(endpoint: str) -> str:
    return _OPERATIONS.get(endpoint, endpoint.rpartition("/")[2])


@lru_cache(maxsize=64)
def _server(url: str) -> dict[str, Value]:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}


def _fields(body: bytes) -> dict[str, Any]:
    fields = orjson.loads(body)
    return fields if isinstance(fields, dict) else {}


def _asked(fields: Mapping[str, Any]) -> Mapping[str, Value]:
    """Only numbers: a field of another type could hold text of a document."""
    found: dict[str, Value] = {}
    for attribute, names, kind in _ASKED:
        value = next(
            (fields[name] for name in names if isinstance(fields.get(name), int | float)), None
        )
        if value is not None:
            found[attribute] = kind(value)
    return found


def _answered(happened: Failure | Reply | None) -> Mapping[str, Value]:
    """Attributes of the answer, if there is one."""
    if happened is None:
        return {"error.type": GIVEN_UP}
    found: dict[str, Value] = {}
    if happened.status is not None:
        found["http.response.status_code"] = happened.status
    if isinstance(happened, Failure):
        found["error.type"] = happened.name
        return found
    found.update(_reply(happened))
    return found


def _reply(reply: Reply) -> Mapping[str, Value]:
    told: dict[str, Value | None] = {
        "gen_ai.response.model": None if reply.model is None else short(reply.model),
        "gen_ai.response.finish_reasons": None
        if reply.finish_reason is None
        else [short(reply.finish_reason)],
        "gen_ai.usage.input_tokens": reply.prompt_tokens,
        "gen_ai.usage.output_tokens": reply.completion_tokens,
    }
    return {name: value for name, value in told.items() if value is not None}

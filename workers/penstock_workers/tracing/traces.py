"""The spans of a feed, as plain data: each traced document's being sent is the root of its trace.

The span of one call to a model is by OpenTelemetry's conventions for generative AI, and attributes
by those for messaging, too; what those have no word for starts with `penstock.`. No attribute ever
holds a prompt, a document, an answer, or the words of an error. ``sink.py`` turns spans into
OpenTelemetry's.

The spans of a settled item, from the marks of its attempt: `process`, and in it `wait`, the call
to the model, `settle`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from time import time_ns
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from penstock_ledger.model import Feed, ItemKey, Job
from penstock_ledger.reasons import Reason
from penstock_producer.feed.tracing import (
    TRACEPARENT_HEADER,
    Sampler,
    SpanContext,
    parse_traceparent,
    trace_of,
    traceparent,
)
from penstock_producer.feed.wire import item_tag
from penstock_producer.pins import SUBMITTED_BY
from penstock_ratelimit import profile_for
from penstock_workers.item.attempt import Attempt, Item, Marks, Settled
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.outcome import (
    Dead,
    Outcome,
    Parked,
    Released,
    Retry,
    Unreadable,
)
from penstock_workers.lanes.registry import lane_row
from penstock_workers.settings import ProviderSettings, WorkerSettings

SYSTEM: Final = "celery"  # the messaging system; the broker behind it may be any of Celery's
TEXT_CHARS: Final = 256  # of an id or a model's name: they come from outside

Value = str | int | float | bool | list[str]

_ids = random.Random()  # span ids but for roots: OpenTelemetry asks for random, not for secret


class Kind(Enum):
    """The kinds of spans, by the names of OpenTelemetry's SpanKind."""

    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"
    CLIENT = "CLIENT"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span. Times in nanoseconds since 1970."""

    name: str
    kind: Kind
    context: SpanContext
    parent: SpanContext | None
    began_ns: int
    ended_ns: int
    attributes: dict[str, Value]
    error: bool = False
    links: list[SpanContext] = field(default_factory=list)


def child_of(context: SpanContext) -> SpanContext:
    """Make a new span of the same trace."""
    return SpanContext(context.trace_id, _ids.getrandbits(64) or 1)


def short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - 1] + "…"


def message_attributes(operation: str, queue: str, key: ItemKey) -> dict[str, Value]:
    """Return the attributes of every span about a message."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "messaging.message.id": item_tag(key),
        "penstock.job.id": key.job_id,
        "penstock.generation": key.generation,
        "penstock.document.id": short(key.doc_id),
    }


class FeedSpans:
    """Implements ``penstock_producer.feed.tracing.SendSpans`` for one generation of one job.

    The control thread's.

    A feeder that died between publishing and moving its cursor leaves a successor that publishes
    the same group: those items get the same span twice.
    """

    def __init__(
        self, sampler: Sampler, put: Callable[[Iterable[Span]], None], job: Job, feed: Feed
    ) -> None:
        self._sampler = sampler
        self._put = put
        found = parse_traceparent(job.source.get(SUBMITTED_BY))
        self._submitted_by = None if found is None else found[0]
        self._replays: int | None = feed.selection.get("from_generation")

    def header(self, key: ItemKey) -> str | None:
        root = trace_of(key)
        return traceparent(root) if self._sampler.takes(root.trace_id) else None

    def sent(
        self, keys: Sequence[ItemKey], queue: str, began_ns: int, *, again: bool = False
    ) -> None:
        traced = [
            (key, root) for key in keys if self._sampler.takes((root := trace_of(key)).trace_id)
        ]
        if traced:
            ended_ns = time_ns()
            self._put(
                self._span(key, root, queue, (began_ns, ended_ns), again) for key, root in traced
            )

    def _span(
        self, key: ItemKey, root: SpanContext, queue: str, times: tuple[int, int], again: bool
    ) -> Span:
        attributes = message_attributes("send", queue, key)
        if again:
            attributes["penstock.republished"] = True
        context, parent = (child_of(root), root) if again else (root, None)
        links = self._links(key)
        return Span(
            f"send {queue}", Kind.PRODUCER, context, parent, *times, attributes, links=links
        )

    def _links(self, key: ItemKey) -> list[SpanContext]:
        """Return where the work came from.

        It is the request of the service that submitted the job, or the try that is replayed."""
        links = [] if self._submitted_by is None else [self._submitted_by]
        if self._replays is not None:
            earlier = trace_of(key._replace(generation=self._replays))
            if self._sampler.takes(earlier.trace_id):
                links.append(earlier)
        return links


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
        """Make the span of a call.

        It is CLIENT in all lanes: the caller's view, wherever the model runs."""
        fields = _fields(attempt.body)
        endpoint = attempt.job.spec.endpoint
        operation = _OPERATIONS.get(endpoint, endpoint.rpartition("/")[2])
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


@lru_cache(maxsize=64)
def _server(url: str) -> dict[str, Value]:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}


def _fields(body: bytes) -> dict[str, Any]:
    fields = orjson.loads(body)
    return fields if isinstance(fields, dict) else {}


def _asked(fields: Mapping[str, Any]) -> Mapping[str, Value]:
    """Return what was asked for in numbers.

    A field of another type could hold text of a document."""
    found: dict[str, Value] = {}
    for attribute, names, kind in _ASKED:
        value = next(
            (fields[name] for name in names if isinstance(fields.get(name), int | float)), None
        )
        if value is not None:
            found[attribute] = kind(value)
    return found


def _answered(happened: Failure | Reply | None) -> Mapping[str, Value]:
    """Return the attributes of the answer, if there is one."""
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


NS_PER_MS = 1_000_000
UNNAMED = "_OTHER"  # OpenTelemetry's word for an error without a name


class ItemTraces:
    """Makes the spans of those items of a worker that are traced. Used on the item loop."""

    def __init__(
        self, share: float, lane: str, calls: ModelCalls, put: Callable[[Iterable[Span]], None]
    ) -> None:
        self._sampler = Sampler(share)
        self._admitted_by = lane_row(lane).waits_for
        self._calls = calls
        self._put = put

    def settled(self, group: Sequence[Settled]) -> None:
        """Hand over the spans of those items that are traced.

        All of them are durable and acknowledged by now."""
        now_ns = time_ns()
        for item, outcome in group:
            if (
                isinstance(item, Item)
                and item.marks is not None
                and (roots := self._roots(item)) is not None
            ):
                self._put(self._spans(item, item.marks, roots, outcome, now_ns, len(group)))

    def _roots(self, item: Item) -> tuple[SpanContext, SpanContext | None] | None:
        """Return the root of an item's trace, and the span above `process`.

        None for an item that is not traced. The feeder that sent an item has decided, and its
        message says so: then the sending is the span above. Where the message says nothing, because
        another share holds there, the share of this worker decides and there is none above.
        """
        root = trace_of(item.key)
        header = parse_traceparent(item.delivery.headers.get(TRACEPARENT_HEADER))
        if header is not None and header[1]:
            return root, root
        return (root, None) if self._sampler.takes(root.trace_id) else None

    def _spans(
        self,
        item: Item,
        marks: Marks,
        roots: tuple[SpanContext, SpanContext | None],
        outcome: Outcome,
        now_ns: int,
        group: int,
    ) -> Iterator[Span]:
        root, parent = roots
        process = child_of(root)
        yield self._wait(marks, process)
        if isinstance(item, Attempt) and "called" in marks:
            yield self._calls.span(item, marks, child_of(process), process)
        settle: dict[str, Value] = {"penstock.settle.items": group}
        yield Span(
            "settle", Kind.INTERNAL, child_of(process), process, marks["decided"], now_ns, settle
        )
        yield Span(
            f"process {item.delivery.queue}",
            Kind.CONSUMER,
            process,
            parent,
            marks["claimed"],
            now_ns,
            _attributes(item, outcome),
            error=_failed(outcome),
        )

    def _wait(self, marks: Marks, process: SpanContext) -> Span:
        """Return the span from the claim to the item's turn.

        It waits for a slot, then for the quota or for room in the engine."""
        began_ns, decided_ns = marks["claimed"], marks["decided"]
        ended_ns = marks.get("admitted", decided_ns)
        slot_ns = marks.get("seated", decided_ns) - began_ns
        turn_ns = ended_ns - marks.get("prepared", ended_ns)
        attributes: dict[str, Value] = {
            "penstock.wait.for": self._admitted_by
            if self._admitted_by and turn_ns > slot_ns
            else "slot",
            "penstock.wait.slot_ms": slot_ns / NS_PER_MS,
        }
        if self._admitted_by and "prepared" in marks:
            attributes[f"penstock.wait.{self._admitted_by}_ms"] = turn_ns / NS_PER_MS
        return Span(
            "wait", Kind.INTERNAL, child_of(process), process, began_ns, ended_ns, attributes
        )


def _attributes(item: Item, outcome: Outcome) -> dict[str, Value]:
    attributes = message_attributes("process", item.delivery.queue, item.key)
    attributes["penstock.attempt"] = item.number
    attributes["penstock.outcome"] = type(outcome).__name__.lower()
    attributes["penstock.redelivered"] = item.delivery.redelivered
    if isinstance(item, Attempt) and item.crashes:
        attributes["penstock.crashes"] = item.crashes
    if isinstance(outcome, Retry):
        attributes["penstock.retry.after_s"] = outcome.after_s
        attributes["penstock.retry.counted"] = outcome.counted
    reason = _reason(outcome)
    if reason is not None:
        attributes["penstock.reason"] = reason
    if _failed(outcome):
        attributes["error.type"] = reason or UNNAMED
    return attributes


def _failed(outcome: Outcome) -> bool:
    return isinstance(outcome, Retry | Dead | Unreadable) or (
        isinstance(outcome, Parked) and outcome.pauses is not None
    )


def _reason(outcome: Outcome) -> str | None:
    """Return the failure's name, without its details, which may quote a document."""
    match outcome:
        case Dead(letter):
            return letter.reason
        case Parked(pauses=Reason(code=code)):
            return code
        case Retry(name=name):
            return name
        case Released(crashed=failure):
            return failure
    return None

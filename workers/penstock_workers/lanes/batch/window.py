"""The batches that are packed side by side: one for each pair of model and endpoint.

A window ends when one of them is full. All of them then have the same two cursors of the source,
and differ in their models or endpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final
from uuid import uuid4

from penstock_ledger import FIGURE_MAX, DeadLetter, ItemKey, NewProviderBatch, Remainder
from penstock_producer.feed.routes import model_of
from penstock_producer.job.routing import unmarked
from penstock_producer.planning.prefixes import CachedPrompts
from penstock_producer.prices import ModelPrices
from penstock_producer.rows import Document
from penstock_ratelimit import Estimator
from penstock_workers.item.job_view import JobView
from penstock_workers.item.run.cost import dearest, too_long
from penstock_workers.item.run.follow_ups import as_asked, routed, turns
from penstock_workers.lanes.batch.apis.provider import BadLine, BatchProvider, LineTooLong
from penstock_workers.lanes.batch.packed import (
    PackedDocument,
    PackedFolder,
    PackedWriter,
    custom_id,
)

SAME_ID: Final = (
    "another document of its batch has the same custom_id {}, which is made of their ids; give one "
    "of them another id"
)
OPEN_MAX: Final = 32  # packed side by side: each has three files open

Kind = tuple[str | None, str]  # of the requests of one batch: their model and their endpoint


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms that the batches of one feed have in common."""

    job_id: str
    generation: int
    provider: str
    kind: str
    endpoint: str  # of documents that name none
    model: str | None  # None: each request names its own
    requests_max: int
    tokens_max: int | None  # that the account may have in batches
    prompt_tokens_max: int | None  # of one document
    prices_of: Callable[[str | None], ModelPrices | None]  # of a model
    cached: CachedPrompts | None = None  # None: the provider's prompt cache is not used
    job: JobView | None = None  # None: it has no rules for what was answered or is late
    step: int = 0  # of its `degrade`, by which documents are asked that no better model has

    def asked(self, body: bytes, *, escalated: bool) -> bytes:
        """Return a request as it is asked now."""
        if self.job is None or not (escalated or self.step):
            return body
        ways = turns(routed(self.job, body), escalated=escalated, steps=self.step)
        for target, view in ways:
            body = as_asked(body, target, view)
        return body

    def kind_of(self, body: bytes, endpoint: str | None) -> Kind:
        """Return what kind of batch a request goes to; ``endpoint`` is its own, if it has one."""
        return self.model or model_of(body), endpoint or self.endpoint


def line_of(
    provider: BatchProvider, terms: Terms, document: Document, before: Remainder
) -> tuple[PackedDocument, bytes]:
    """Return one document as the provider reads it.

    ``before`` is what it used up until now. Raises BadLine and LineTooLong."""
    name = custom_id(document.doc_id, provider.limits.id_chars)
    asked = terms.asked(document.body, escalated=before.escalations > 0)
    body, cached = unmarked(asked), terms.cached
    # another model has another cache
    if cached is not None and document.endpoint is None and asked is document.body:
        body = cached.laid_out(body, cached.levels(body))
    line = provider.line(name, document.endpoint or terms.endpoint, body)
    most = min(provider.limits.line_bytes, provider.limits.total_bytes)
    if len(line) > most:
        raise LineTooLong(
            f"its line has {len(line)} bytes; one of a batch at {terms.provider} has at most {most}"
        )
    used = (
        before.attempts,
        before.calls,
        before.prompt_tokens,
        before.completion_tokens,
        before.cost_microusd,
    )
    packed = PackedDocument(name, document.doc_id, before.position, *used)
    return packed._replace(escalations=before.escalations), line


@dataclass(slots=True)
class _Open:
    tag: str
    writer: PackedWriter
    tokens: int = 0
    may_cost_microusd: int = 0
    keys: list[ItemKey] = field(default_factory=list)


class Window:
    """The batches that are open at once, in one thread. ``close`` or ``discard`` ends it."""

    def __init__(self, folder: PackedFolder, provider: BatchProvider, terms: Terms) -> None:
        self._folder, self._provider, self._terms = folder, provider, terms
        self._estimator = Estimator()
        self._open: dict[Kind, _Open] = {}
        self.letters: list[DeadLetter] = []  # of documents that can be no line of a batch
        self.packed = 0  # documents that are lines of one
        # the documents of each batch for SQL, by tag, once it is closed
        self.kept: dict[str, bytes] = {}

    def add(self, row: Document, before: Remainder) -> bool:
        """Add a document; return False, without it, where the window has come to its end.

        ``before``: what it used up until now."""
        try:
            document, line = line_of(self._provider, self._terms, row, before)
        except BadLine as error:
            reason = "request_too_large" if isinstance(error, LineTooLong) else "bad_request"
            self.letters.append(_letter(before, reason, str(error), row))
            return True
        if (why := too_long(row.body, self._terms.prompt_tokens_max)) is not None:
            self.letters.append(_letter(before, "prompt_too_long", why, row))
            return True
        body = self._terms.asked(row.body, escalated=before.escalations > 0)
        kind = self._terms.kind_of(body, row.endpoint)
        tokens = ceil(self._estimator.estimate_prompt(self._terms.job_id, len(body)))
        packing = self._open.get(kind)
        if packing is None:
            if len(self._open) >= OPEN_MAX:
                return False
            tag = uuid4().hex
            packing = self._open[kind] = _Open(tag, self._folder.writer(tag))
        elif packing.writer.has(document.custom_id):
            if before.key not in packing.keys:  # else the source shows the same document twice
                self.letters.append(
                    _letter(before, "bad_request", SAME_ID.format(document.custom_id), row)
                )
            return True
        elif self._is_full(packing, len(line), tokens):
            return False
        packing.writer.add(document, line, row.body)
        packing.tokens += tokens
        may_cost = packing.may_cost_microusd + self._may_cost(kind[0], body, tokens)
        packing.may_cost_microusd = min(FIGURE_MAX, may_cost)
        packing.keys.append(before.key)
        self.packed += 1
        return True

    def close(
        self, cursor_before: dict[str, Any] | None, cursor_behind: dict[str, Any] | None
    ) -> list[tuple[NewProviderBatch, list[ItemKey]]]:
        """Return the batches, each with its files on the disk and its documents."""
        terms, packed = self._terms, []
        for (model, endpoint), packing in self._open.items():
            packing.writer.close()
            if (kept := packing.writer.kept()) is not None:
                self.kept[packing.tag] = kept
            batch = NewProviderBatch(
                packing.tag,
                terms.job_id,
                terms.generation,
                terms.provider,
                terms.kind,
                model,
                endpoint,
                cursor_before,
                cursor_behind,
                packing.writer.requests,
                packing.writer.size,
                packing.tokens,
                packing.may_cost_microusd,
                step=terms.step,
            )
            packed.append((batch, packing.keys))
        return packed

    def discard(self) -> None:
        for packing in self._open.values():
            packing.writer.discard()

    def _may_cost(self, model: str | None, body: bytes, prompt_tokens: int) -> int:
        """Return what a request may cost.

        Where it does not say how long its answer may be, that is as long as first estimates have
        it."""
        prices = self._terms.prices_of(model)
        if prices is None:
            return 0
        return dearest(prices, body, prompt_tokens, in_batch=True)[0]

    def _is_full(self, packing: _Open, size: int, tokens: int) -> bool:
        limits, terms = self._provider.limits, self._terms
        return (
            packing.writer.requests >= min(limits.requests, terms.requests_max)
            or packing.writer.size + size > limits.total_bytes
            or (terms.tokens_max is not None and packing.tokens + tokens > terms.tokens_max)
        )


def _letter(before: Remainder, reason: str, why: str, row: Document) -> DeadLetter:
    return DeadLetter(
        key=before.key,
        reason=reason,
        attempts=before.attempts,
        calls=before.calls,
        last_error=why,
        status_code=None,
        request=row.body,
        response=None,
        prompt_tokens=before.prompt_tokens,
        completion_tokens=before.completion_tokens,
        cost_microusd=before.cost_microusd,
        endpoint=row.endpoint,
    )

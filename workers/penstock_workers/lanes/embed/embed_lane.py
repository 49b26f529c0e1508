"""The `embed` lane: prepare reads and tokenises, infer waits for the batcher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_workers.celery_app.ending import end_this_worker
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.embed.batcher import Batcher, EncoderLost, EncodingFailed, NoRoom
from penstock_workers.lanes.embed.bodies import (
    Ask,
    BadBody,
    ShortVectors,
    answer_body,
    check_dimensions,
    check_endpoint,
    check_ids,
    read_body,
    too_long,
)
from penstock_workers.lanes.embed.buckets import TokenIds
from penstock_workers.lanes.embed.budget import TokenBudget
from penstock_workers.lanes.embed.encoder import Encoder, SentenceTransformersEncoder, check_packages
from penstock_workers.lanes.embed.models import model_folder
from penstock_workers.lanes.embed.numbers import NotRepresentable
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.embed.tokens import Tokenising

HEADERS: Mapping[str, str] = {"Content-Type": "application/json"}
MakeEncoder = Callable[[Path, EmbedSettings], Encoder]


@dataclass(frozen=True, slots=True)
class Input:
    """What ``prepare`` leaves for ``infer``."""

    ask: Ask
    rows: Sequence[TokenIds]


class EmbedLane:
    """Raises ModelMissing and PackageMissing when made: a command line knows before anything has been started."""

    def __init__(
        self,
        settings: EmbedSettings,
        make_encoder: MakeEncoder | None = None,
        *,
        failpoints: Failpoints | None = None,
        give_up: Callable[[str], None] = end_this_worker,
    ) -> None:
        """``give_up`` ends the worker, for its orchestrator to replace: a lost device stays lost for the whole process."""
        self._settings = settings
        self.served = settings.served()
        self._failpoints, self._give_up = failpoints, give_up
        self._folder = model_folder(settings.model)
        self._name = Path(settings.model or "").name
        if make_encoder is None:
            check_packages()
        self._make_encoder = make_encoder or SentenceTransformersEncoder
        self._batcher: Batcher | None = None

    async def start(self) -> None:
        """Loads the model: seconds, in which the loop has nothing else to do."""
        settings = self._settings
        self._encoder = await asyncio.to_thread(self._make_encoder, self._folder, settings)
        self._short_vectors = _short_vectors(self._encoder, settings)
        self._tokens = Tokenising(self._encoder)
        self._batcher = Batcher(
            self._encoder,
            TokenBudget(settings.token_budget),
            batch_items=settings.batch_items,
            window_s=settings.window_ms / 1000,
            on_lost=self._give_up,
            stall_s=settings.stall_s,
            failpoints=self._failpoints,
        )
        self._batcher.start()

    async def prepare(self, request: Request) -> Prepared:
        try:
            ask = self._read(request)
            rows = await self._rows(ask, trim=request.on_overflow != "fail")
        except BadBody as error:
            return Prepared(request, refused=error.answer())
        return Prepared(request, tokens=sum(map(len, rows)), input=Input(ask, rows))

    async def infer(self, prepared: Prepared) -> Tried:
        assert self._batcher is not None, "start() comes first"
        request, given = prepared.request, prepared.input
        started = time.monotonic()
        try:
            async with asyncio.timeout(None) as limit:
                clock = _ComputingOnly(limit, request.timeout_s)
                vectors = await self._batcher.encode(given.rows, request.priority, clock.computing)
        except TimeoutError:
            why = (
                f"its batch was computed for longer than {request.timeout_s:g} s; raise timeout_s, or send fewer texts"
            )
            return NoAnswer("timeout", why, _since(started))
        except EncoderLost as error:
            return NoAnswer("engine_died", str(error), _since(started))
        except NoRoom as error:
            return NoAnswer("engine_busy", str(error), _since(started), sent=False)
        except EncodingFailed as error:
            return NoAnswer("engine_failed", str(error), _since(started))
        try:
            body = answer_body(given.ask, vectors, model=given.ask.model or self._name, tokens=prepared.tokens)
        except NotRepresentable as error:
            return BadBody(str(error), param="output_dtype").answer()
        return Answer(200, HEADERS, body, _since(started), packed=True)

    def gauges(self) -> Mapping[str, float | str]:
        return {} if self._batcher is None else self._batcher.gauges()

    def drain(self) -> None:
        """Nothing to begin that takes long."""

    async def close(self) -> None:
        if self._batcher is not None:
            await self._tokens.close()
            await self._batcher.close()

    def _read(self, request: Request) -> Ask:
        check_endpoint(request.endpoint)
        ask = read_body(request.body)
        check_dimensions(ask, self._short_vectors)
        return ask

    async def _rows(self, ask: Ask, *, trim: bool) -> Sequence[TokenIds]:
        limit = self._encoder.max_tokens
        rows = await self._tokenised(ask.texts) if ask.texts else list(ask.ids)
        for at, ids in enumerate(rows):
            if len(ids) > limit:
                if not trim:
                    raise too_long(len(ids), limit)
                rows[at] = await self._tokens.trimmed(ask.texts[at]) if ask.texts else ids[:limit]
        if not all(map(len, rows)):
            raise BadBody("an entry of 'input' has no token")
        if ask.ids:
            check_ids(rows, self._encoder.vocabulary)
        return rows

    async def _tokenised(self, texts: Sequence[str]) -> list[TokenIds]:
        try:
            return await self._tokens.ids(texts)
        except Exception as error:
            raise BadBody(f"the tokenizer refuses this text: {type(error).__name__}: {error}") from error


def _short_vectors(encoder: Encoder, settings: EmbedSettings) -> ShortVectors:
    """What the operator says counts, then what the model's files say."""
    if settings.matryoshka is None:
        return ShortVectors(encoder.dimensions, encoder.matryoshka, encoder.short_sizes)
    return ShortVectors(encoder.dimensions, settings.matryoshka)


class _ComputingOnly:
    """An item's time runs while the encoder has some of its texts. Waiting in line is not its fault."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit, self._seconds = limit, seconds
        self._rows = 0  # that the encoder has now

    def computing(self, begins: bool) -> None:
        self._rows += 1 if begins else -1
        if self._limit.expired():
            return
        if begins and self._rows == 1:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._seconds)
        elif not self._rows:
            self._limit.reschedule(None)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)

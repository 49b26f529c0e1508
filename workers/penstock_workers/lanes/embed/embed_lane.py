"""The `embed` lane: prepare reads and tokenises, infer waits for the batcher.

Vectors, scores and classes go the same way; only what is read from a body and what is made of a
batch's rows differ.

What a folder holds, by its files: a model that embeds, or one that scores and classifies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock_workers.celery_app.ending import end_this_worker
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes import scoring
from penstock_workers.lanes.embed.batcher import (
    Batcher,
    EncoderLost,
    EncodingFailed,
    NoRoom,
)
from penstock_workers.lanes.embed.bodies import (
    Ask,
    BadBody,
    NotRepresentable,
    ShortVectors,
    answer_body,
    check_dimensions,
    check_endpoint,
    check_ids,
    read_body,
    too_long,
)
from penstock_workers.lanes.embed.buckets import Buckets, TokenBudget, TokenIds, Vector
from penstock_workers.lanes.embed.computing import Computing
from penstock_workers.lanes.embed.encoder import (
    Encoder,
    SentenceTransformersClassifier,
    SentenceTransformersEncoder,
    Tokenising,
    check_packages,
    scores,
)
from penstock_workers.lanes.embed.settings import EmbedSettings, model_folder
from penstock_workers.lanes.loading import LoadWatch, this_process
from penstock_workers.lanes.machine import read_json

OWN_NOTE: Final = "config_sentence_transformers.json"
CLASSIFIER: Final = "ForSequenceClassification"
"""How the names of transformers' classes for this end."""


def is_classifier(folder: Path) -> bool:
    """Return whether a model scores or classifies.

    sentence-transformers' note of what it saved counts; else the class that transformers would
    load.
    """
    noted = (read_json(folder / OWN_NOTE) or {}).get("model_type")
    if isinstance(noted, str):
        return noted == "CrossEncoder"
    if (folder / "modules.json").is_file():
        return False  # its earlier releases saved nothing else in this form
    named = (read_json(folder / "config.json") or {}).get("architectures")
    return isinstance(named, list) and any(str(name).endswith(CLASSIFIER) for name in named)


HEADERS: Mapping[str, str] = {"Content-Type": "application/json"}
MakeEncoder = Callable[[Path, EmbedSettings], Encoder]


@dataclass(frozen=True, slots=True)
class Input:
    """The input that ``prepare`` leaves for ``infer``."""

    ask: Ask | scoring.Ask
    rows: Sequence[TokenIds]


class EmbedLane:
    """The `embed` lane with the encoder in the worker's own process.

    Making it raises ModelMissing and PackageMissing, so that a command line knows before anything
    has been started.
    """

    def __init__(
        self,
        settings: EmbedSettings,
        make_encoder: MakeEncoder | None = None,
        *,
        failpoints: Failpoints | None = None,
        give_up: Callable[[str], None] = end_this_worker,
    ) -> None:
        """Check that the model and the packages are there, but load nothing.

        ``give_up`` ends the worker, for its orchestrator to replace: a lost device stays lost for
        the whole process.
        """
        self._settings = settings
        self.served = settings.served()
        self._failpoints, self._give_up = failpoints, give_up
        self._folder = model_folder(settings.model)
        self._name = Path(settings.model or "").name
        if make_encoder is None:
            check_packages()
        self._make_encoder = make_encoder or _own_encoder
        self._loading = LoadWatch("embed.model", str(self._folder))
        self._batcher: Batcher | None = None

    async def start(self) -> None:
        """Load the model."""
        settings = self._settings
        async with self._loading.during(this_process):
            self._encoder = await asyncio.to_thread(self._make_encoder, self._folder, settings)
        self._short_vectors = _short_vectors(self._encoder, settings)
        self.served = replace(self.served, tasks=_tasks(self._encoder))
        self._tokens = Tokenising(self._encoder)
        self._batcher = Batcher(
            Computing(self._encoder, stall_s=settings.stall_s, failpoints=self._failpoints),
            Buckets(batch_items=settings.batch_items, window_s=settings.window_ms / 1000),
            TokenBudget(settings.token_budget),
            self._give_up,
        )
        self._batcher.start()

    async def prepare(self, request: Request) -> Prepared:
        try:
            ask = self._read(request)
            trim = request.on_overflow != "fail"
            rows = await (
                self._rows(ask, trim=trim)
                if isinstance(ask, Ask)
                else self._cut_rows(ask.texts, trim=trim)
            )
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
                f"its batch was computed for longer than {request.timeout_s:g} s; raise timeout_s, "
                "or send fewer texts"
            )
            return NoAnswer("timeout", why, _since(started))
        except EncoderLost as error:
            return NoAnswer("engine_died", str(error), _since(started))
        except NoRoom as error:
            return NoAnswer("engine_busy", str(error), _since(started), sent=False)
        except EncodingFailed as error:
            return NoAnswer("engine_failed", str(error), _since(started))
        model = given.ask.model or self._name
        if isinstance(given.ask, scoring.Ask):
            return Answer(
                200, HEADERS, self._scored(given.ask, vectors, prepared, model), _since(started)
            )
        try:
            body = answer_body(given.ask, vectors, model=model, tokens=prepared.tokens)
        except NotRepresentable as error:
            return BadBody(str(error), param="output_dtype").answer()
        return Answer(200, HEADERS, body, _since(started), packed=True)

    def gauges(self) -> Mapping[str, float | str]:
        """Return the figures of the model; from any thread."""
        if self._batcher is None:
            return {"bound": "starting", **self._loading.gauges()}
        return self._batcher.gauges()

    def drain(self) -> None:
        """Do nothing: there is nothing to begin that takes long."""

    async def close(self) -> None:
        if self._batcher is not None:
            await self._tokens.close()
            await self._batcher.close()

    def _read(self, request: Request) -> Ask | scoring.Ask:
        """Read what a request asks for, and check that the model can do it.

        Raises BadBody."""
        task, classes = scoring.task_of(request.endpoint), len(self._encoder.labels)
        if task is not None:
            try:
                if (why := scoring.wrong_model(task, classes)) is not None:
                    raise scoring.BadAsk(f"{self._name}: {why}", "model")
                return scoring.read_ask(task, request.body)
            except scoring.BadAsk as error:
                raise BadBody(str(error), param=error.param) from None
        check_endpoint(request.endpoint)
        if classes:
            raise BadBody(
                f"{self._name} classifies and does not embed: ask /classify, or host a model that "
                "embeds"
            )
        ask = read_body(request.body)
        if ask.messages:
            raise BadBody(
                f"{self._name} is hosted here and embeds texts: put a model that embeds images "
                "behind vLLM's server, and name that in embed.upstream_url",
                param="messages",
            )
        check_dimensions(ask, self._short_vectors)
        return ask

    def _scored(
        self, ask: scoring.Ask, vectors: Sequence[Vector], prepared: Prepared, model: str
    ) -> bytes:
        return scoring.answer_body(
            ask,
            [scores(vector, activated=ask.activated) for vector in vectors],
            labels=self._encoder.labels,
            tag=prepared.request.tag,
            model=model,
            tokens=prepared.tokens,
        )

    async def _rows(self, ask: Ask, *, trim: bool) -> Sequence[TokenIds]:
        if ask.texts:
            return await self._cut_rows(ask.texts, trim=trim)
        limit = self._encoder.max_tokens
        check_ids(ask.ids, self._encoder.vocabulary)
        if not trim and max(map(len, ask.ids)) > limit:
            raise too_long(max(map(len, ask.ids)), limit)
        return [ids[:limit] for ids in ask.ids]

    async def _cut_rows(self, texts: Sequence[scoring.Text], *, trim: bool) -> Sequence[TokenIds]:
        """Return the token ids of texts, cut where ``trim`` allows it.

        Raises BadBody for a text without a token, and for one that is too long where it may not be
        cut.
        """
        limit = self._encoder.max_tokens
        rows = await self._tokenised(texts)
        for at, ids in enumerate(rows):
            if len(ids) > limit:
                if not trim:
                    raise too_long(len(ids), limit)
                rows[at] = await self._tokens.trimmed(texts[at])
        if not all(map(len, rows)):
            raise BadBody("an entry of 'input' has no token")
        return rows

    async def _tokenised(self, texts: Sequence[scoring.Text]) -> list[TokenIds]:
        try:
            return await self._tokens.ids(texts)
        except Exception as error:
            raise BadBody(
                f"the tokenizer refuses this text: {type(error).__name__}: {error}"
            ) from error


def _own_encoder(folder: Path, settings: EmbedSettings) -> Encoder:
    """Make the encoder that the model's files ask for."""
    return (
        SentenceTransformersClassifier if is_classifier(folder) else SentenceTransformersEncoder
    )(folder, settings)


def _tasks(encoder: Encoder) -> tuple[str, ...]:
    if not encoder.labels:
        return ("embed",)
    return tuple(
        task for task in scoring.TASKS if scoring.wrong_model(task, len(encoder.labels)) is None
    )


def _short_vectors(encoder: Encoder, settings: EmbedSettings) -> ShortVectors:
    """Return to which sizes vectors may be cut.

    What the operator says counts, then what the model's files say."""
    if settings.matryoshka is None:
        return ShortVectors(encoder.dimensions, encoder.matryoshka, encoder.short_sizes)
    return ShortVectors(encoder.dimensions, settings.matryoshka)


class _ComputingOnly:
    """An item's time runs while the encoder has some of its texts.

    Waiting in line is not its fault."""

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

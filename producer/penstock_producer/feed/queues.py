"""The queues of lanes and of models, and which models workers serve.

A lane has one queue, and where workers host a model one more for each model. Models are named by
paths, hub ids or `s3://` addresses, in files that come from strangers. A queue's name is made of
safe characters only, is bounded, and differs for different models. The chart makes the same names
(templates/_queues.tpl): the autoscaler counts these queues.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from penstock_ledger.keys import QUEUE_PREFIX
from penstock_producer.job.lanes import has_own_model

if TYPE_CHECKING:
    from penstock_ledger import WorkerSeen

__all__ = [
    "ALIVE_S",
    "HOME",
    "LISTED",
    "LOADS",
    "NAMES_MAX",
    "PROVIDERS",
    "SERVES",
    "TEXT_BYTES",
    "MissingModel",
    "Served",
    "Serving",
    "listed_models",
    "missing_model",
    "missing_provider",
    "model_queues",
    "providers_text",
    "queue_name",
    "serving_of",
    "unserved_queues",
]

SAFE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
"""Models of such a name are written as they are. A `~` is in none of them, so no such name looks
like a digest."""
SHOWN_CHARS: Final = 40
"""The last characters of any other name that are shown before its digest."""
DIGEST_CHARS: Final = 16
"""Of SHA-256, in hexadecimal digits: two models of one fleet do not share them by chance."""
NAMES_KEPT: Final = 256
"""Names whose queues stay computed: feeders ask once per document."""


def queue_name(lane: str, model: str | None = None) -> str:
    """Return the name of a lane's queue, or of a model's queue in it.

    Lanes without models of their own have one queue for all.
    """
    if model is None or not has_own_model(lane):
        return f"{QUEUE_PREFIX}{lane}"
    return f"{QUEUE_PREFIX}{lane}.{_safe(model)}"


def model_queues(lane: str, names: Iterable[str]) -> list[str]:
    """Return the queues of a model by all its names, in their order."""
    return list(dict.fromkeys(queue_name(lane, name) for name in names))


@lru_cache(maxsize=NAMES_KEPT)
def _safe(model: str) -> str:
    if SAFE.fullmatch(model) is not None:
        return model
    digest = hashlib.sha256(model.encode(errors="surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return re.sub(r"[^A-Za-z0-9._-]", "_", model[-SHOWN_CHARS:], flags=re.ASCII) + "~" + digest


SERVES: Final = "serves"
"""The field of a heartbeat."""
LOADS: Final = "loads"
"""The field while the model loads, in place of these two: what the worker will serve, as far as its
settings say."""
LISTED: Final = "listed"
"""The field of workers that ask providers: the models that each lists, as JSON."""
HOME: Final = "home"
"""The field with the queue under whose name a worker keeps what it holds."""
PROVIDERS: Final = "providers"
"""The field of a worker that packs documents: the providers that it has settings of, with commas
between them."""
NAMES_MAX: Final = 256
"""Names of one worker, adapters included: each is a queue that it looks into at every claim."""
SHOWN_MAX: Final = 8
"""Adapters of a model that a sentence names; a model may have hundreds."""
LISTED_MAX: Final = 1_000
"""Models of one provider that are listed; more than that fit into no heartbeat."""
NAME_CHARS: Final = 512
"""As long as a job's model may be."""
TASKS_MAX: Final = 8
"""Of one model: there are not as many kinds of answers."""
TEXT_BYTES: Final = 16_384
"""Of the field. Names that do not fit are served all the same, and are not announced."""
ALIVE_S: Final = 15.0
"""Three heartbeats: what a worker said that has been silent for longer says nothing of now."""


@dataclass(frozen=True, slots=True)
class Served:
    """One worker's model.

    ``names`` are all that requests may call it, adapters apart; the first is what it hosts."""

    names: tuple[str, ...]
    adapters: tuple[str, ...] = ()
    context: int | None = None  # tokens, prompt and answer together
    dtype: str | None = None
    tasks: tuple[str, ...] = ()  # such as embed, score, rerank, classify; none = it does not say

    @property
    def every_name(self) -> tuple[str, ...]:
        """In their order, each once."""
        return tuple(dict.fromkeys((*self.names, *self.adapters)))

    @property
    def shown(self) -> str:
        """The shortest of its names, as people write it."""
        return min(self.names, key=lambda name: (len(name), name), default="")

    def home(self, lane: str) -> str:
        """Return the queue under whose name a worker keeps what it holds.

        It is the same, whichever of the worker's queues that was in.
        """
        return queue_name(lane, self.names[0] if self.names else None)

    def queues(self, lane: str) -> list[str]:
        """Return the queues of the worker's model, by all names."""
        return model_queues(lane, self.every_name)

    def to_text(self) -> str:
        """Return the text for the heartbeat; of very many names as many as fit."""
        said = {name: value for name, value in asdict(self).items() if value}
        while len(text := orjson.dumps(said)) > TEXT_BYTES:
            longest = max(("names", "adapters"), key=lambda field: len(said.get(field, ())))
            said[longest] = said[longest][: len(said[longest]) // 2]
        return text.decode()

    @classmethod
    def read(cls, text: str | None) -> Served | None:
        """Read what a heartbeat says; None where it says nothing, or nothing that makes sense."""
        try:
            said: Any = orjson.loads(text or "")
        except orjson.JSONDecodeError:
            return None
        if not isinstance(said, dict):
            return None
        names, context, dtype = _names(said.get("names")), said.get("context"), said.get("dtype")
        if not names:
            return None
        return cls(
            names,
            _names(said.get("adapters")),
            context if type(context) is int and 0 < context < 2**31 else None,
            dtype if isinstance(dtype, str) and len(dtype) <= NAME_CHARS else None,
            _names(said.get("tasks"))[:TASKS_MAX],
        )


@dataclass(frozen=True, slots=True)
class Serving:
    """The models that living workers of one lane serve, and those that are loading."""

    lane: str
    workers: tuple[Served, ...]
    loading: tuple[Served, ...] = ()

    def serves(self, model: str) -> bool:
        return any(model in served.every_name for served in self.workers)

    def loads(self, model: str | None) -> bool:
        return any(model in served.every_name for served in self.loading)

    def models(self) -> list[Served]:
        """Return each model once: workers that share a name serve the same one."""
        found: list[Served] = []
        for served in self.workers:
            if not any(set(served.names) & set(other.names) for other in found):
                found.append(served)
        return sorted(found, key=lambda served: served.shown)

    def in_words(self) -> str:
        """Return text such as "tiny1 (2 workers; adapters legal), tiny2 (1 worker: score)"."""
        parts = []
        for model in self.models():
            same = [served for served in self.workers if set(model.names) & set(served.names)]
            tasks = f": {', '.join(model.tasks)}" if model.tasks else ""
            adapters = sorted({name for served in same for name in served.adapters})
            more = f" and {len(adapters) - SHOWN_MAX} more" if len(adapters) > SHOWN_MAX else ""
            if adapters:
                tasks += f"; adapters {', '.join(adapters[:SHOWN_MAX])}{more}"
            parts.append(
                f"{model.shown} ({len(same)} worker{'' if len(same) == 1 else 's'}{tasks})"
            )
        return ", ".join(parts)


def serving_of(workers: Iterable[WorkerSeen], lane: str) -> Serving:
    """Return what the workers of a lane serve, by their heartbeats."""
    infos: list[Mapping[str, str]] = [
        seen.info
        for seen in workers
        if seen.seconds_ago < ALIVE_S and seen.info.get("lane") == lane
    ]
    return Serving(lane, _read_all(infos, SERVES), _read_all(infos, LOADS))


def listed_models(workers: Iterable[WorkerSeen], provider: str) -> list[str]:
    """Return the models that a provider lists, as living workers have read them."""
    found: dict[str, None] = {}
    for seen in workers:
        try:
            said: Any = (
                orjson.loads(seen.info.get(LISTED, "")) if seen.seconds_ago < ALIVE_S else {}
            )
        except orjson.JSONDecodeError:
            continue
        found |= dict.fromkeys(_names(said.get(provider) if isinstance(said, dict) else None))
    return sorted(found)


def providers_text(names: Iterable[str]) -> str:
    """Return the names of providers for the heartbeat."""
    return ",".join(names)[:TEXT_BYTES]


def missing_provider(workers: Iterable[WorkerSeen], lane: str, provider: str) -> str | None:
    """Return a warning that no living worker of a lane has the settings of a provider.

    None where one has them, none lives, or one does not say.
    """
    living = [
        seen.info
        for seen in workers
        if seen.seconds_ago < ALIVE_S and seen.info.get("lane") == lane
    ]
    said = [info.get(PROVIDERS) for info in living]
    if not said or any(one is None or provider in one.split(",") for one in said):
        return None
    return f"no worker of lane {lane} has the settings of provider {provider}"


class MissingModel(NamedTuple):
    """A model that a job waits for."""

    name: str | None  # None: the one that began to answer the job
    queue: str | None  # of that one
    loads: bool  # a worker loads it
    served: str  # what is served in its place, in words


def missing_model(
    serving: Serving, model: str | None, bound: str | None = None
) -> MissingModel | None:
    """Return the model that a job waits for.

    None where it need not wait, or no worker says what it serves. ``bound`` is the queue of the
    model that answers a job without one.
    """
    if not serving.workers:
        return None
    if model is not None:
        is_served = serving.serves(model)
    else:
        is_served = bound is None or any(
            bound in served.queues(serving.lane) for served in serving.workers
        )
    if is_served:
        return None
    return MissingModel(model, bound, serving.loads(model), serving.in_words())


def unserved_queues(serving: Serving, waiting: Mapping[str, int]) -> list[str]:
    """Return the models' queues in which messages wait and that no worker takes any from.

    ``waiting`` has the number of messages by queue.
    """
    served = {queue for worker in serving.workers for queue in worker.queues(serving.lane)}
    own = queue_name(serving.lane)
    return sorted(
        queue
        for queue, number in waiting.items()
        if number and queue != own and queue not in served
    )


def _read_all(infos: Iterable[Mapping[str, str]], field: str) -> tuple[Served, ...]:
    read = (Served.read(info.get(field)) for info in infos)
    return tuple(served for served in read if served is not None)


def _names(value: Any, most: int = NAMES_MAX) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(
        name
        for name in value[:most]
        if isinstance(name, str) and 0 < len(name) <= NAME_CHARS and name.isprintable()
    )

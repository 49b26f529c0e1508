"""Requests for scores and classes in vLLM's terms.

Each text or pair is one call of the engine, and all of them make one answer."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock_workers.lanes.gpu.engine.engines import Engine, EngineCall, RequestRefused, upstream
from penstock_workers.lanes.scoring import (
    Ask,
    BadAsk,
    Task,
    Text,
    answer_body,
    read_ask,
    wrong_model,
)

PARTS_AT_ONCE: Final = 64
"""Of one request in the engine: a long list must not fill its line before other items."""
CLASSIFIER: Final = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes that the loaded model tells apart.

    ``joins``: its tokenizer makes one text of a pair, and no template. ``reads_sides``: it has a
    layer for which token is of which side; one that has none ends the engine where that is given.
    """

    labels: tuple[str, ...] = ()
    joins: bool = True
    reads_sides: bool = False


@dataclass(frozen=True, slots=True)
class ScoringFacts:
    """The parts of the request that the reply repeats."""

    ask: Ask
    model: str
    labels: Sequence[str]
    parsed: None = None  # a score has no text that a parser of answers could read


def classes_of(model_config: Any, *, templated: bool = False) -> Classes:
    """Return the classes of a model; none of one that embeds or generates.

    ``templated``: the operator gave a chat template, which is for its pairs."""
    if model_config.runner_type != "pooling":
        return Classes()
    config = model_config.hf_config
    named = getattr(config, "architectures", None) or []
    is_one = model_config.convert_type == "none" and any(
        name.endswith(CLASSIFIER) for name in named
    )
    if not is_one and model_config.convert_type != "classify":
        return Classes()
    names = getattr(config, "id2label", None) or {}
    labels = tuple(
        str(names.get(place, place)) for place in range(getattr(config, "num_labels", 0))
    )
    joins = (
        bool(model_config.use_sep_token) and not model_config.is_multimodal_model and not templated
    )
    return Classes(labels, joins, reads_sides=getattr(config, "type_vocab_size", 0) > 1)


def ask_of(task: Task, body: bytes, classes: Classes) -> Ask:
    """Read what a request asks for, and check that the model can do it.

    Raises RequestRefused."""
    why = wrong_model(task, len(classes.labels))
    if why is None and task != "classify" and not classes.joins:
        why = (
            "this model is asked for scores through a template; ask it by a vLLM server beside the "
            "worker (gpu.upstream_url)"
        )
    if why is not None:
        raise RequestRefused(why)
    try:
        return read_ask(task, body)
    except BadAsk as error:
        raise RequestRefused(str(error)) from error


def tokens_of(tokenizer: Any, text: Text, *, cut_at: int | None) -> tuple[list[int], list[int]]:
    """Return token ids, and the side of the pair that each belongs to.

    There are no sides where the tokenizer does not say them."""
    options: dict[str, Any] = (
        {} if cut_at is None else {"truncation": "longest_first", "max_length": cut_at}
    )
    said = tokenizer(*((text,) if isinstance(text, str) else text), **options)
    return list(said["input_ids"]), list(said.get("token_type_ids") or ())


def pooling_params(ask: Ask | None = None, sides: Sequence[int] = ()) -> Any:
    """Make the parameters of one text or pair; without ``ask``, those of a probe.

    vLLM wants the place where the second side begins."""
    extra = (
        {"compressed_token_type_ids": sides.index(1) if 1 in sides else len(sides)}
        if sides
        else None
    )
    return upstream("vllm", "PoolingParams")(
        task="classify", use_activation=ask is None or ask.activated, extra_kwargs=extra
    )


def occupied(parts: Sequence[EngineCall]) -> int:
    """Return how many tokens the parts may come to occupy.

    They are those of the longest parts that may be in the engine together."""
    return sum(heapq.nlargest(PARTS_AT_ONCE, (len(part.token_ids) for part in parts)))


async def run_parts(engine: Engine, parts: Sequence[EngineCall]) -> list[Any]:
    """Run the parts and return their outputs, in their order.

    What one raises ends the others. Raises what ``Engine.run`` raises."""
    room = asyncio.Semaphore(PARTS_AT_ONCE)

    async def run(part: EngineCall) -> Any:
        async with room:
            return await engine.run(part, _unheard)

    tasks = [asyncio.ensure_future(run(part)) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _unheard() -> None:
    """Do nothing: a score comes whole, and that its computing began is known at its end."""


def scored(call: EngineCall, outputs: Sequence[Any]) -> bytes:
    """Make the body of a good answer."""
    facts: ScoringFacts = call.facts
    tokens = sum(len(part.token_ids) for part in call.parts)
    rows = [output.outputs.data.float().flatten().tolist() for output in outputs]
    return answer_body(
        facts.ask, rows, labels=facts.labels, tag=call.request_id, model=facts.model, tokens=tokens
    )

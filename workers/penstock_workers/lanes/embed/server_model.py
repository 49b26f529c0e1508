"""What an embedding server says of the model that it has loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock_workers.lanes.scoring.asks import TASKS, wrong_model

__all__ = ["ServerModel", "model_of"]


@dataclass(frozen=True, slots=True)
class ServerModel:
    """``labels``: of its classes in their order, none where it embeds; None where the server does
    not say."""

    name: str
    context: int | None = None  # tokens of one text or pair
    is_tei: bool = False  # text-embeddings-inference, else vLLM
    labels: tuple[str, ...] | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """None where the server does not say."""
        if self.labels is None:
            return ()
        able = tuple(task for task in TASKS if wrong_model(task, len(self.labels or ())) is None)
        return able or ("embed",)


def model_of(said: object) -> ServerModel | None:
    """From vLLM's `/v1/models` or text-embeddings-inference's `/info`; None of anything else."""
    match said:
        case {"data": [{"id": str(name), **more}, *_]}:
            return ServerModel(name, _count(more.get("max_model_len")))
        case {"model_id": str(name), **more}:
            return ServerModel(
                name, _count(more.get("max_input_length")), True, _labels(more.get("model_type"))
            )
    return None


def _labels(kind: object) -> tuple[str, ...] | None:
    """`model_type` is one of {"embedding": …}, {"classifier": …} and {"reranker": …}."""
    match kind:
        case {"embedding": _}:
            return ()
        case {"classifier": {"id2label": dict(names)}} | {"reranker": {"id2label": dict(names)}}:
            numbered = sorted(
                (int(place), str(name)) for place, name in names.items() if str(place).isdecimal()
            )
            return tuple(name for _, name in numbered) or None
    return None


def _count(given: Any) -> int | None:
    return given if type(given) is int and given > 0 else None

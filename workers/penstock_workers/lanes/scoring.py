"""The bodies of `/v1/rerank`, `/v1/score` and `/classify`, as vLLM's server has them.

Every lane that answers them uses this module. It reads what a request asks for, refuses a field
that cannot be followed by name, and makes the answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from penstock_producer.errors import seen

Task = Literal["rerank", "score", "classify"]
Pair = tuple[str, str]
Text = str | Pair

TASKS: Final[tuple[Task, ...]] = ("rerank", "score", "classify")
MAX_TEXTS: Final = 2_048
"""Documents, pairs or texts of one request: as many as one for embeddings may have."""
# The two sides of a score, by the names that vLLM's server reads.
SIDES: Final = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)
_TRIM: Final = "submit with on_overflow = trim, which cuts what is too long"
_UNDONE: Final[Mapping[str, str]] = {
    "max_tokens_per_query": _TRIM,
    "max_tokens_per_doc": _TRIM,
    "truncate_prompt_tokens": _TRIM,
    "instruction": "write it into the query",
    "chat_template": "a document may not bring its own",
    "chat_template_kwargs": "no chat template is rendered here",
    "messages": "give the text as input",
    "rank_fields": "give each document as one text",
    "mm_processor_kwargs": "only texts are scored here",
}
"""Fields that would change the answer, with what to do instead of them."""


class BadAsk(Exception):
    """A request that can never be inferred."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, read. ``texts`` are what the model reads, each of them by itself."""

    task: Task
    texts: Sequence[Text]
    model: str | None
    activated: bool  # probabilities and scores as the model means them; else its logits
    top_n: int | None = None
    with_documents: bool = True


def task_of(endpoint: str) -> Task | None:
    """Name the task by the last part of the path.

    `/v1/rerank`, `/v2/rerank` and `/rerank` are one."""
    last = endpoint.rpartition("/")[2]
    return next((task for task in TASKS if task == last), None)


def wrong_model(task: Task, classes: int) -> str | None:
    """Return why a model with this many classes cannot do the task; None where it can.

    No classes: it embeds, or generates."""
    if classes == 0:
        return f"this model gives no scores; {task} needs a cross-encoder or a classifier"
    if classes > 1 and task != "classify":
        return (
            f"this model has {classes} classes; {task} needs one score for each pair: ask "
            "/classify, or host another model"
        )
    return None


def read_ask(task: Task, body: bytes) -> Ask:
    """Read what a request asks for.

    Fields that change nothing, such as `user`, are let pass. Raises BadAsk."""
    asked = _object(body)
    for name, fix in _UNDONE.items():
        if asked.get(name):
            raise BadAsk(
                f"'{name}' is {_shown(asked[name])}, which is not supported here: leave it out; "
                f"{fix}",
                name,
            )
    model, activated = asked.get("model"), asked.get("use_activation")
    if activated is not None and not isinstance(activated, bool):
        raise BadAsk(
            f"'use_activation' is {_shown(activated)}: give true or false", "use_activation"
        )
    named, meant = model if isinstance(model, str) else None, activated is not False
    match task:
        case "rerank":
            return Ask(
                task,
                _ranked(asked),
                named,
                meant,
                _top(asked.get("top_n")),
                _wants_documents(asked),
            )
        case "score":
            return Ask(task, _pairs(asked), named, meant)
        case "classify":
            return Ask(task, _texts(asked.get("input"), "input"), named, meant)


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadAsk(f"the body is not JSON: {error}", "body") from None
    if not isinstance(asked, dict):
        raise BadAsk(f"the body is {_shown(asked)}: give an object", "body")
    return asked


def _ranked(asked: Mapping[str, Any]) -> list[Pair]:
    query = asked.get("query")
    if not isinstance(query, str) or not query:
        raise BadAsk(f"'query' is {_shown(query)}: give a text that is not empty", "query")
    return [(query, document) for document in _texts(asked.get("documents"), "documents")]


def _pairs(asked: Mapping[str, Any]) -> list[Pair]:
    first, second = next(
        (names for names in SIDES if names[0] in asked and names[1] in asked), SIDES[0]
    )
    left, right = _texts(asked.get(first), first), _texts(asked.get(second), second)
    if len(left) == 1:
        left *= len(right)
    if len(left) != len(right):
        words = (
            f"'{first}' has {len(left)} texts and '{second}' has {len(right)}: give one, or as "
            "many of each"
        )
        raise BadAsk(words, first)
    return list(zip(left, right, strict=True))


def _texts(given: object, name: str) -> list[str]:
    """Read one text or many; each may be an object with its text, as Jina and Cohere have it."""
    many = given if isinstance(given, list) else [given]
    if not many:
        raise BadAsk(f"'{name}' is empty: give a text, or a list of texts", name)
    if len(many) > MAX_TEXTS:
        raise BadAsk(
            f"'{name}' has {len(many)} entries, and at most {MAX_TEXTS} are allowed: make it "
            "several",
            name,
        )
    texts: list[Any] = [each.get("text") if isinstance(each, dict) else each for each in many]
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            at = f"{name}[{place}]" if isinstance(given, list) else name
            raise BadAsk(f"'{at}' is {_shown(many[place])}: give a text that is not empty", name)
    return texts


def _top(top_n: object) -> int | None:
    """Return how many of the best come back; None = all, which vLLM's clients also write as 0."""
    if top_n is None or (type(top_n) is int and top_n >= 0):
        return top_n or None
    raise BadAsk(f"'top_n' is {_shown(top_n)}: give a whole number, 0 for all", "top_n")


def _wants_documents(asked: Mapping[str, Any]) -> bool:
    wanted = asked.get("return_documents")
    if wanted is None or isinstance(wanted, bool):
        return wanted is not False
    raise BadAsk(f"'return_documents' is {_shown(wanted)}: give true or false", "return_documents")


def _shown(value: object) -> str:
    return "missing" if value is None else seen(value)


def answer_body(
    ask: Ask,
    rows: Sequence[Sequence[float]],
    *,
    labels: Sequence[str | None],
    tag: str,
    model: str,
    tokens: int,
) -> bytes:
    """Make the body of an answer.

    ``rows`` are the numbers of each text, one for each class. ``tag`` names the item, as request
    ids do.
    """
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    if ask.task == "rerank":
        return orjson.dumps(
            {"id": f"rerank-{tag}", "model": model, "usage": usage, "results": _ranking(ask, rows)}
        )
    data = [
        _class(place, row, labels)
        if ask.task == "classify"
        else {"index": place, "object": "score", "score": row[0]}
        for place, row in enumerate(rows)
    ]
    head = {
        "id": f"{ask.task}-{tag}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
    }
    return orjson.dumps(head | {"data": data, "usage": usage})


def _ranking(ask: Ask, rows: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Return the documents, the best first; of equal ones, the one that came first."""
    order = sorted(range(len(rows)), key=lambda place: -rows[place][0])
    documents = [
        {"document": {"text": text[1]}} if ask.with_documents else {} for text in ask.texts
    ]
    return [
        {"index": place, **documents[place], "relevance_score": rows[place][0]}
        for place in order[: ask.top_n]
    ]


def _class(place: int, row: Sequence[float], labels: Sequence[str | None]) -> dict[str, Any]:
    best = max(range(len(row)), key=row.__getitem__)
    label = labels[best] if best < len(labels) else None
    return {"index": place, "label": label, "probs": row, "num_classes": len(row)}

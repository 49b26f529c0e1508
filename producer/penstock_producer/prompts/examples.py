"""Few-shot examples: what the model is shown before each document.

They are messages of a user and of the assistant.

{"input": {"text": "Great!"}, "output": "positive"}       a record, rendered by the job's prompt
{"input": "Great!", "output": {"label": "positive"}}      text as it is; else as JSON
{"messages": [{"role": "user", …}, {"role": "assistant", …}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import Problem, SpecError, seen
from penstock_producer.prompts.messages import SYSTEM_ROLES, BadMessages, checked_messages

__all__ = ["example_messages", "example_problems"]

MAX_EXAMPLES: Final = 500
MAX_BYTES: Final = 256 * 1024  # of all as JSON: they are part of the job, and of every request
MAX_DEPTH: Final = 64
_PAIR: Final = frozenset({"input", "output"})
_MESSAGES: Final = frozenset({"messages"})
_FORMS: Final = 'write {"input": …, "output": …} or {"messages": […]}'

Render = Callable[[Mapping[str, Any], str], str]  # a record, and where it stands in the spec


def example_problems(examples: Sequence[Any]) -> Iterator[Problem]:
    """Yield what makes the examples unusable by themselves.

    Whether the prompt can be rendered for them is found out with it.
    """
    if len(examples) > MAX_EXAMPLES:
        fix = f"at most {MAX_EXAMPLES} are sent with each request"
        yield Problem("invalid_value", "/examples", f"there are {len(examples)} examples", fix)
        return
    try:
        size = len(json.dumps(examples, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        yield Problem(
            "invalid_type",
            "/examples",
            f"they are not JSON ({str(error)[:100]})",
            "give plain values",
        )
        return
    if size > MAX_BYTES:
        fix = f"at most {MAX_BYTES} are allowed: they are sent with each request"
        yield Problem("invalid_value", "/examples", f"they have {size} bytes", fix)
        return
    for index, example in enumerate(examples):
        at = f"/examples/{index}"
        fault = _plain_fault(example)
        yield from (
            _problems_of(example, at) if fault is None else [Problem("invalid_value", at, *fault)]
        )


def example_messages(
    examples: Sequence[Mapping[str, Any]], render: Render | None
) -> list[dict[str, Any]]:
    """Return the messages of the examples.

    ``render`` is the job's prompt; None for a job without one.

    Raises SpecError for a record without a prompt.
    """
    messages: list[dict[str, Any]] = []
    for index, example in enumerate(examples):
        if "messages" in example:
            messages += checked_messages(example["messages"])
            continue
        given, output = example["input"], example["output"]
        if isinstance(given, str):
            text = given
        elif render is None:
            fix = "write the input as text, or give messages"
            message = "a record needs a prompt, and this job has messages"
            raise SpecError([Problem("invalid_value", f"/examples/{index}/input", message, fix)])
        else:
            text = render(given, f"/examples/{index}/input")
        answer = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        messages += ({"role": "user", "content": text}, {"role": "assistant", "content": answer})
    return messages


def _plain_fault(example: Any) -> tuple[str, str] | None:
    """Return what no database or provider takes, with the fix.

    Without recursion: how deep it is, is not known yet.
    """
    waiting = [(example, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return (
                f"it has more than {MAX_DEPTH} levels",
                "flatten it, or write the inner part as text",
            )
        if isinstance(value, str) and "\x00" in value:
            return "a text holds a NUL character", "remove it"
        inside = (
            (*value, *value.values())
            if isinstance(value, Mapping)
            else value
            if isinstance(value, list)
            else ()
        )
        waiting += [(one, depth + 1) for one in inside]
    return None


def _problems_of(example: Any, at: str) -> Iterator[Problem]:
    if not isinstance(example, Mapping) or frozenset(example) not in (_PAIR, _MESSAGES):
        yield Problem("invalid_value", at, f"{seen(example)} is no example", _FORMS)
    elif "messages" in example:
        yield from _problems_of_messages(example["messages"], f"{at}/messages")
    elif not isinstance(example["input"], (str, Mapping)) or example["input"] in ("", {}):
        yield Problem(
            "invalid_type",
            f"{at}/input",
            f"{seen(example['input'])} is refused",
            "give text or a record",
        )
    elif example["output"] in (None, ""):
        yield Problem(
            "invalid_value", f"{at}/output", "there is no answer", "write the answer that is wanted"
        )


def _problems_of_messages(given: Any, at: str) -> Iterator[Problem]:
    try:
        messages = checked_messages(given)
    except BadMessages as error:
        yield Problem(
            "invalid_value",
            at,
            f"{error.place or 'the messages'}: {error.message} Seen: {error.value}",
            error.fix,
        )
        return
    if messages[-1]["role"] != "assistant":
        yield Problem(
            "invalid_value",
            at,
            "the last message is not the assistant's",
            "end an example with its answer",
        )
    if any(message["role"] in SYSTEM_ROLES for message in messages):
        yield Problem(
            "invalid_value",
            at,
            "an example has no system message",
            Text("give the job's one (", SetOption("system"), ")"),
        )

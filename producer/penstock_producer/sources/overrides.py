"""A replay changes the stored request of a dead letter.

    {"set": {"model": "large", "x.safe_prompt": true}, "unset": ["max_tokens"], "prompt": "Briefly:
    {prompt}"}

``set`` writes fields of the request: the model, and parameters as `params.py` knows them, any other
with the prefix `x.`. ``unset`` gives a field back what the document had for it before its first
replay, or removes one that it did not have; the name `prompt` stands for its text. ``prompt`` is a
template whose only column is `{prompt}`, the text that was sent: the original record is not kept
with a dead letter. ``body`` is a whole request, which one document is
sent with instead of its own; it stands alone.

A replay starts from the request that failed, so changes of earlier replays stay until they are
unset. In this order: unset, set, prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import orjson

from penstock_producer.errors import Problem, SpecError, TemplateError, seen
from penstock_producer.job.endpoints import CHAT
from penstock_producer.job.params import UNCHECKED, as_sent, param_problems
from penstock_producer.job.spec import json_problems
from penstock_producer.prompts.template import Template, TextTooLong
from penstock_producer.sources.forms.strict_json import RowFault, too_large

__all__ = ["Overrides"]

MAX_MODEL_CHARS: Final = 512  # as of a spec
_TEXT_FIELDS = ("input", "prompt")  # of requests that have no messages
_TEXT: Final = "prompt"  # in ``unset``: the text of the request, wherever it is
_NAMES: Final = frozenset({"set", "unset", "prompt", "body"})


class Overrides:
    """Checked once, before a replay is accepted.

    Raises SpecError for what no request could be sent with."""

    def __init__(self, given: Mapping[str, Any], endpoint: str = CHAT) -> None:
        problems = [*_shape_problems(given)] or [*_set_problems(given.get("set") or {}, endpoint)]
        problems = problems or [*_body_problems(given.get("body"))]
        problems = problems or [
            *chain.from_iterable(json_problems(given[name], f"/{name}") for name in given)
        ]
        if problems:
            raise SpecError(problems)
        self._read(given)

    @classmethod
    def accepted(cls, stored: Mapping[str, Any]) -> Overrides:
        """Return the changes of a replay in the ledger.

        What this release would refuse does not stop a replay of an earlier release.
        """
        overrides = cls.__new__(cls)
        overrides._read(stored)
        return overrides

    @property
    def restores(self) -> bool:
        """Return whether ``apply`` needs the request from before the first replay."""
        return bool(self._unset)

    def apply(self, request: bytes, original: bytes = b"") -> bytes:
        """Return the changed request body. Raises RowFault where the request has no text to change.

        ``original`` is the request from before the document's first replay, which ``unset`` takes
        fields from.
        """
        if self._body is not None:
            return orjson.dumps(self._body)
        if not self._set and not self._unset and self._prompt is None:
            return request
        body: dict[str, Any] = orjson.loads(request)
        if self._unset:
            _restore(body, self._unset, orjson.loads(original or request))
        body |= self._set
        if self._prompt is not None:
            try:
                _rewrite(body, self._prompt)
            except TextTooLong as error:
                raise too_large(
                    f"more than {error.max_chars} characters", error.max_chars, "prompt"
                ) from None
        return orjson.dumps(body)

    def _read(self, given: Mapping[str, Any]) -> None:
        self._set = as_sent(given.get("set") or {})
        self._unset: Sequence[str] = [
            name.removeprefix(UNCHECKED) for name in given.get("unset") or ()
        ]
        self._body: Mapping[str, Any] | None = given.get("body")
        text = given.get("prompt")
        self._prompt = None if text is None else Template(text)
        if self._prompt is not None and set(self._prompt.fields) != {"prompt"}:
            raise TemplateError(
                f"{seen(text)} must use the column {{prompt}} and no other",
                "{prompt} is the text that was sent",
            )


def _shape_problems(given: Mapping[str, Any]) -> list[Problem]:
    for name in sorted(given.keys() - _NAMES):
        return [
            Problem(
                "unknown_field",
                f"/{name}",
                "no such override",
                "give set, unset and prompt only, or a body",
            )
        ]
    if not isinstance(given.get("set") or {}, Mapping):
        return [
            Problem(
                "invalid_type",
                "/set",
                f"{seen(given['set'])} is refused",
                "give an object of fields",
            )
        ]
    unset = given.get("unset") or []
    if not isinstance(unset, list) or not all(isinstance(name, str) and name for name in unset):
        return [
            Problem("invalid_type", "/unset", f"{seen(unset)} is refused", "give a list of names")
        ]
    if not isinstance(given.get("prompt"), (str, type(None))):
        return [
            Problem("invalid_type", "/prompt", f"{seen(given['prompt'])} is refused", "give a text")
        ]
    if given.get("body") is not None and len(given) > 1:
        return [
            Problem(
                "invalid_value",
                "/body",
                "a body stands alone",
                "give it without set, unset and prompt",
            )
        ]
    both = {name.removeprefix(UNCHECKED) for name in given.get("set") or {}} & {
        n.removeprefix(UNCHECKED) for n in unset
    }
    return [
        Problem(
            "invalid_value", f"/unset/{name}", f"{name} is both set and unset", "keep one of them"
        )
        for name in sorted(both)
    ]


def _set_problems(fields: Mapping[str, Any], endpoint: str) -> list[Problem]:
    problems: list[Problem] = []
    params = dict(fields)
    model = params.pop("model", "m")
    if not isinstance(model, str) or not 0 < len(model) <= MAX_MODEL_CHARS:
        problems.append(
            Problem(
                "invalid_type", "/set/model", f"{seen(model)} is refused", "name a model, as text"
            )
        )
    return [*problems, *param_problems(params, endpoint, "/set")]


def _body_problems(body: Any) -> list[Problem]:
    if body is None:
        return []
    if not isinstance(body, Mapping) or not body:
        return [
            Problem(
                "invalid_type", "/body", f"{seen(body)} is refused", "give a request as an object"
            )
        ]
    if body.get("stream"):
        at = "/body/stream"
        return [
            Problem(
                "streaming_unsupported", at, "results are stored whole, not streamed", "remove it"
            )
        ]
    return []


def _restore(body: dict[str, Any], names: Sequence[str], original: Mapping[str, Any]) -> None:
    fields = [name for name in names if name != _TEXT]
    if _TEXT in names:
        fields += [name for name in ("messages", *_TEXT_FIELDS) if name in original or name in body]
    for name in fields:
        if name in original:
            body[name] = original[name]
        else:
            body.pop(name, None)


def _rewrite(body: dict[str, Any], prompt: Template) -> None:
    if isinstance(body.get("messages"), list):
        body["messages"] = _rewritten(body["messages"], prompt)
        return
    for name in _TEXT_FIELDS:
        if isinstance(body.get(name), str):
            body[name] = prompt.render({"prompt": body[name]})
            return
    raise _no_text()


def _rewritten(messages: list[Any], prompt: Template) -> list[Any]:
    for index in reversed(range(len(messages))):
        message = messages[index]
        if (
            isinstance(message, dict)
            and message.get("role") == "user"
            and isinstance(message.get("content"), str)
        ):
            changed = {**message, "content": prompt.render({"prompt": message["content"]})}
            return [*messages[:index], changed, *messages[index + 1 :]]
    raise _no_text()


def _no_text() -> RowFault:
    return RowFault(
        "prompt_not_found",
        "The request has no user message or input of plain text to put into the new prompt.",
        fix="replay it without a prompt",
        field="prompt",
    )

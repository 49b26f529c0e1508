"""What a replay changes in the stored request of a dead letter: `{"set": {"model": …}, "prompt": "Briefly: {prompt}"}`.

``set`` writes top-level fields of the request. ``prompt`` is a template whose only column is `{prompt}`, the text that
was sent: the original record is not kept with a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from penstock_producer.errors import Problem, SpecError, TemplateError, seen
from penstock_producer.sources.forms import too_large
from penstock_producer.sources.strict_json import RowFault
from penstock_producer.template import Template, TextTooLong

_TEXT_FIELDS = ("input", "prompt")  # of requests that have no messages


class Overrides:
    """Checked once, before a replay is accepted. Raises SpecError for anything but ``set`` and ``prompt``."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        unknown = sorted(stored.keys() - {"set", "prompt"})
        if unknown:
            fix = "give set and prompt only"
            raise SpecError([Problem("unknown_field", f"/{unknown[0]}", "no such override", fix)])
        self._set: dict[str, Any] = dict(stored.get("set") or {})
        if self._set.get("stream"):
            raise SpecError([Problem("streaming_unsupported", "/set/stream", "results are stored whole", "remove it")])
        text = stored.get("prompt")
        self._prompt = None if text is None else Template(text)
        if self._prompt is not None and set(self._prompt.fields) != {"prompt"}:
            raise TemplateError(
                f"{seen(text)} must use the column {{prompt}} and no other", "{prompt} is the text that was sent"
            )

    def apply(self, request: bytes) -> bytes:
        """The changed request body. Raises RowFault where the request has no text to change."""
        if not self._set and self._prompt is None:
            return request
        body = {**orjson.loads(request), **self._set}
        if self._prompt is not None:
            try:
                _rewrite(body, self._prompt)
            except TextTooLong as error:
                raise too_large(f"more than {error.max_chars} characters", error.max_chars, "prompt") from None
        return orjson.dumps(body)


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
        if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
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

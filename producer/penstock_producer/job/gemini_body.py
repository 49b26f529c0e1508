"""A request body of Gemini: parameters stand together in one field, and the system text in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from penstock_producer.job.spec import JobSpec

__all__ = ["GeminiBodies", "with_defaults"]


class GeminiBodies:
    """Builds the body for one rendered text."""

    def __init__(self, spec: JobSpec) -> None:
        system = {} if spec.system is None else {"systemInstruction": {"parts": [{"text": spec.system}]}}
        head = orjson.dumps({"model": spec.model} | system)
        self._head = head[:-1] + b',"contents":[{"role":"user","parts":[{"text":'
        self._params = spec.sent_params()
        self._end = _end(self._params)

    def __call__(self, content: str | list[dict[str, Any]], params: Mapping[str, Any] | None = None) -> bytes:
        """``content`` is a text. ``params`` are the document's own, as they are sent."""
        end = _end({**self._params, **params}) if params else self._end
        return b"".join((self._head, orjson.dumps(content), b"}]}]", end))


def with_defaults(given: dict[str, Any], model: str | None, params: Mapping[str, Any]) -> dict[str, Any]:
    """A body with what the job says where the body does not."""
    filled = {**({} if model is None else {"model": model}), **given}
    own = given.get("generationConfig", {})
    return filled | {"generationConfig": {**params, **own}} if params and isinstance(own, dict) else filled


def _end(params: Mapping[str, Any]) -> bytes:
    return b',"generationConfig":' + orjson.dumps(dict(params)) + b"}" if params else b"}"

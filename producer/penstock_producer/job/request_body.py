"""From a document's text to a provider's request body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from penstock_producer.errors import Problem, SpecError
from penstock_producer.job.endpoints import SCORING
from penstock_producer.job.lanes import has_own_model
from penstock_producer.job.params import as_sent
from penstock_producer.job.spec import JobSpec

# Where the text of a document goes, by the end of the endpoint's path.
_TEXT_FIELDS = {
    "/chat/completions": "messages",
    "/completions": "prompt",
    "/responses": "input",
    "/embeddings": "input",
    "/moderations": "input",
    "/classify": "input",
}


def text_field(endpoint: str) -> str | None:
    """The field of a request body that holds the text to work on; None for endpoints that are not listed here."""
    for suffix, field in _TEXT_FIELDS.items():
        if endpoint.endswith(suffix):
            return field
    return None


_dump = orjson.dumps


class BodyBuilder:
    """Builds the body for one rendered text. Raises SpecError when the spec does not say enough to build one."""

    def __init__(self, spec: JobSpec) -> None:
        field = text_field(spec.endpoint)
        problem = _problem(spec, field)
        if field is None or problem is not None:
            raise SpecError([problem] if problem is not None else [])
        head = {} if spec.model is None else {"model": spec.model}
        tail = spec.sent_params()
        # Where a document may bring its own value, the job's is put in with each, so that no name stands there twice.
        self._defaults = {name: tail.pop(name) for name in as_sent(spec.param_fields) if name in tail}
        before, after = b"", b""
        if field == "messages":
            system = b"" if spec.system is None else _dump({"role": "system", "content": spec.system}) + b","
            before, after = b"[" + system + b'{"role":"user","content":', b"}]"
        elif spec.system is not None:
            tail["instructions"] = spec.system
        self._before = (_dump(head)[:-1] + b"," if head else b"{") + _dump(field) + b":" + before
        self._after = after + (b"," + _dump(tail)[1:] if tail else b"}")

    def __call__(self, text: str, params: Mapping[str, Any] | None = None) -> bytes:
        """``params`` are the document's own, as they are sent."""
        own = {**self._defaults, **params} if params else self._defaults
        after = self._after[:-1] + b"," + _dump(own)[1:] if own else self._after
        return b"".join((self._before, _dump(text), after))


def _problem(spec: JobSpec, field: str | None) -> Problem | None:
    if field is None:
        known = ", ".join(suffix if suffix in SCORING else f"/v1{suffix}" for suffix in _TEXT_FIELDS)
        fix = f"prompts go to {known}; send others as OpenAI Batch lines"
        return Problem("invalid_value", "/endpoint", f"a prompt cannot be sent to {spec.endpoint}", fix)
    if spec.model is None and not has_own_model(spec.lane):
        return Problem("missing_field", "/model", "a prompt needs a model", "name one (--model)")
    if spec.system is not None and field != "messages" and not spec.endpoint.endswith("/responses"):
        return Problem("invalid_value", "/system", f"{spec.endpoint} takes no system text", "put it into the prompt")
    return None

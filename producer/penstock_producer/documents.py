"""One document that a service pushes, checked as strictly as a line of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock_producer.errors import InvalidDocument, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.sizes import DEFAULT_MAX_BODY_BYTES
from penstock_producer.sources.forms.row_forms import check_doc_id, form_of
from penstock_producer.sources.forms.strict_json import RowFault, parse_object
from penstock_producer.sources.media.parts import media_of

__all__ = ["DocumentChecker"]


class DocumentChecker:
    """Turns what services push into request bodies: records where the spec has a prompt, request
    bodies otherwise."""

    def __init__(
        self, spec: JobSpec, max_bytes: int, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    ) -> None:
        self._form = form_of(spec, max_body_bytes, media_of(spec, None, max_body_bytes))
        self._max_bytes = max_bytes

    def check(self, doc_id: str | int, given: Mapping[str, Any] | bytes | str) -> tuple[str, bytes]:
        """The document id and the request body as JSON. Raises InvalidDocument."""
        try:
            name = check_doc_id(str(doc_id) if type(doc_id) is int else doc_id, "doc_id")
            raw = _as_json(given)
            if len(raw) > self._max_bytes:
                raise InvalidDocument(
                    "line_too_long",
                    f"document {name!r} has {len(raw)} bytes; max_line_bytes allows "
                    f"{self._max_bytes}",
                )
            return name, self._form.request(parse_object(raw, self._form.control_keys))
        except RowFault as fault:
            field = f" field {fault.field}:" if fault.field else ""
            saw = f" Seen: {fault.value}." if fault.value else ""
            raise InvalidDocument(
                fault.code,
                f"document {seen(doc_id)}:{field} {fault.message}{saw} Fix: {fault.fix}",
                public=f"document {seen(doc_id)}{f' ({fault.field})' if fault.field else ''}",
            ) from None


def _as_json(given: Mapping[str, Any] | bytes | str) -> bytes:
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode(errors="surrogatepass")
    try:
        # json and not orjson: orjson would turn NaN into null in silence.
        return json.dumps(dict(given), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDocument(
            "invalid_json",
            f"{seen(given)} is not a JSON object ({error}); pass plain values",
            public="it is not a JSON object; pass plain values",
        ) from error

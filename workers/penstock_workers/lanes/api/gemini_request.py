"""A request of Gemini as it is sent: the model stands in the path, and not in the body."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from penstock_producer.job.endpoints import generate_path
from penstock_workers.http import UnusableRequest
from penstock_workers.item.lane import Request

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])  # so that what is in them is not read


def generating(request: Request) -> Request:
    """Return the request with the model in its path; raise UnusableRequest."""
    try:
        fields = _fields.decode(request.body)
        model = msgspec.json.decode(fields.pop("model", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableRequest(f"the request is not a JSON object: {error}") from error
    path = generate_path(model)
    if path is None:
        raise UnusableRequest(
            'the request names no model of Gemini: write "model": "gemini-2.5-flash", say'
        )
    return replace(request, endpoint=path, body=msgspec.json.encode(fields))

"""A request is sent to its provider's own path, with the fields of a stream.

In a request of Gemini or Bedrock the model stands in the path, and not in the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock_producer.job.endpoints import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PATHS_OF_MODELS,
    RESPONSES,
)
from penstock_workers.http import UnusableRequest
from penstock_workers.item.lane import Request
from penstock_workers.settings import Streams

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])  # so that what is in them is not read
_TRUE: Final = msgspec.Raw(b"true")
_WITH_USAGE: Final = msgspec.Raw(b'{"include_usage":true}')
_OF_STREAMS: Final[Mapping[str, Mapping[str, msgspec.Raw]]] = {
    CHAT: {"stream": _TRUE, "stream_options": _WITH_USAGE},
    COMPLETIONS: {"stream": _TRUE, "stream_options": _WITH_USAGE},
    MESSAGES: {"stream": _TRUE},
    RESPONSES: {"stream": _TRUE},
}


def as_sent(request: Request, streams: Streams) -> Request:
    """Return the request as its provider wants it; raise UnusableRequest.

    ``streams`` says whether, and how, it asks for the answer as events."""
    path_of = PATHS_OF_MODELS.get(request.endpoint)
    if streams == "no" and path_of is None:
        return request
    try:
        fields = _fields.decode(request.body)
        if path_of is None:
            fields |= _OF_STREAMS.get(request.endpoint, {})
            if streams == "plain":
                fields.pop("stream_options", None)
            return replace(request, body=msgspec.json.encode(fields))
        model = msgspec.json.decode(fields.pop("model", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableRequest(f"the request is not a JSON object: {error}") from error
    path = path_of(model)
    if path is None:
        raise UnusableRequest('the request names no model there: write "model": "…" into it')
    if streams != "no":  # none of Bedrock's, which come in a form of their own: see assembling.py
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    return replace(request, endpoint=path, body=msgspec.json.encode(fields))

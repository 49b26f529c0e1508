"""Puts documents with the same beginning next to each other: what an engine has computed for one
serves the next.

An engine keeps the beginnings of recent prompts (its prefix cache), and a worker claims a run of
messages at a time. In the order of most files a shared beginning is pushed out before it comes
again; sorted by prompt it is used by its whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import orjson

from penstock_producer.job.lanes import LANES
from penstock_producer.job.request_body import text_field
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Document

# Rendered before the text wherever they stand in the body. Rare: only bodies that have one of them
# are parsed.
_FIRST = {"messages": ("tools",), "input": ("instructions", "tools")}

Key = Callable[[bytes], bytes]


def wants_order(spec: JobSpec) -> bool:
    """Whether the job's documents are ordered before they are published."""
    if spec.prefix_order is not None:
        return spec.prefix_order
    return spec.takes_records and LANES[spec.first_lane].orders_prompts


def in_prefix_order(documents: Sequence[Document], endpoint: str) -> list[Document]:
    """The same documents, those that share the longest beginnings adjacent; equal prompts stay in
    their order."""
    key = _key_of(text_field(endpoint))
    keyed = [(key(document.body), document) for document in documents]
    keyed.sort(key=itemgetter(0))
    return [document for _, document in keyed]


def _key_of(field: str | None) -> Key:
    """A body's bytes from the text on.

    JSON writes equal beginnings as equal bytes, so they sort as the text would."""
    if field is None:
        return _whole
    start = (
        b'"%b":' % field.encode()
    )  # cannot be matched inside a text: there the quotes are escaped
    rendered_first = _FIRST.get(field, ())
    names = [b'"%b":' % name.encode() for name in rendered_first]

    def key(body: bytes) -> bytes:
        text = body[max(0, body.find(start)) :]
        if any(name in body for name in names):
            parsed = orjson.loads(body)
            return orjson.dumps([parsed.get(name) for name in rendered_first]) + text
        return text

    return key


def _whole(body: bytes) -> bytes:
    return body

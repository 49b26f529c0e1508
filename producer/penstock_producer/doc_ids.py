"""What a document id may be, at every door: rows of files, pushed documents, and queue messages."""

from __future__ import annotations

import re

MAX_DOC_ID_BYTES = 512  # an index entry in every database, a header, a terminal line
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def id_fault(value: str) -> tuple[str, str] | None:
    """What is wrong with ``value`` as a document id, and the fix ("" where that is up to the door);
    None: it is one.

    An id is text of 1 to 512 bytes without control characters and lone surrogates.
    """
    is_plain = value.isascii()
    if not (is_plain and value.isprintable()):
        if _CONTROL.search(value) is not None:
            return "The id holds control characters.", "remove them"
        if _SURROGATE.search(value) is not None:
            return "The id holds half a surrogate pair.", "write the whole character, or remove it"
    size = len(value) if is_plain else len(value.encode())
    if not 0 < size <= MAX_DOC_ID_BYTES:
        return f"The id has {size} bytes; 1 to {MAX_DOC_ID_BYTES} are allowed.", ""
    return None

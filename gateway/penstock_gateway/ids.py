"""The ids that the doors give: a prefix that says of what, and 27 random letters and digits.

An id from a caller is matched whole before anything is looked up by it, so that no path, pattern or
statement is made of another text.
"""

from __future__ import annotations

import re
import secrets
import string
from typing import Final, Literal

__all__ = ["Kind", "is_id", "is_shown", "new_id"]

Kind = Literal[
    "file", "batch", "msgbatch", "batch_req", "req", "key", "chatcmpl", "cmpl", "msg", "we", "evt"
]

_LETTERS: Final = string.digits + string.ascii_letters
_LENGTH: Final = 27  # 160 bits, although some letters are a little likelier than others:
# one random byte makes one
_LETTER_OF: Final = bytes(ord(_LETTERS[byte % len(_LETTERS)]) for byte in range(256))
_TAIL: Final = "[A-Za-z0-9]{24,64}"
SHOWN_CHARS: Final = 80  # more than any id has, here or at OpenAI
_PREFIX: Final[dict[Kind, str]] = {
    "file": "file-",
    "batch": "batch_",
    "msgbatch": "msgbatch_",
    "batch_req": "batch_req_",
    "req": "req_",
    "key": "key_",
    "chatcmpl": "chatcmpl-",
    "cmpl": "cmpl-",
    "msg": "msg_",
    "we": "we_",
    "evt": "evt_",
}
_SHAPE: Final = {kind: re.compile(re.escape(prefix) + _TAIL) for kind, prefix in _PREFIX.items()}


def new_id(kind: Kind) -> str:
    """Return a new id from one read of the system's random numbers.

    Each request needs two ids.
    """
    return _PREFIX[kind] + secrets.token_bytes(_LENGTH).translate(_LETTER_OF).decode()


def is_id(kind: Kind, text: str) -> bool:
    return _SHAPE[kind].fullmatch(text) is not None


def is_shown(text: str) -> bool:
    """Return whether a text that names nothing here may be repeated to its caller.

    Such an id is looked up like any other and found nowhere; it may be no longer than one that is.
    """
    return 0 < len(text) <= SHOWN_CHARS and text.isascii() and text.isprintable()

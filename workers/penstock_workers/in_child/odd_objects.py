"""In a child: reads the texts of objects that hooks made.

Whatever they do when they are asked, a text comes of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final

from penstock_ledger.lone_surrogates import replace_surrogates

WORDS_CHARS: Final = 2_000  # of a hook's error text; a dead letter keeps fewer
TRACE_CHARS: Final = 20_000


def in_words(error: BaseException) -> str:
    """Return the last line of its traceback."""
    return _text(lambda: "".join(traceback.format_exception_only(error)).strip(), type(error))[
        :WORDS_CHARS
    ]


def place_of(error: BaseException) -> str:
    """Return where its traceback points, to be put behind its words; "" where it points nowhere."""

    def read() -> str:
        frames = traceback.extract_tb(error.__traceback__)
        return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""

    return _text(read, type(error))


def trace_of(error: BaseException) -> str:
    """Return the end of its traceback."""
    return _text(lambda: "".join(traceback.format_exception(error)), type(error))[-TRACE_CHARS:]


def reason_text(reason: object) -> str:
    """Return why a hook refused an answer."""
    return _text(lambda: str(reason)[:WORDS_CHARS], type(reason))


def _text(read: Callable[[], str], kind: type) -> str:
    try:
        return replace_surrogates(read())
    except BaseException as error:  # such as SystemExit, in a method of the hook's own
        return replace_surrogates(
            f"{kind.__name__}, whose text cannot be read ({type(error).__name__})"
        )

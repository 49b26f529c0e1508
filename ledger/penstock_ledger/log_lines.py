"""How every Penstock process writes its log: one record, one line.

No secrets, and no commands to a terminal."""

from __future__ import annotations

import logging
import re
import sys
from types import TracebackType
from typing import Any, Final

from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_ledger.redaction import redact

__all__ = ["LineFormatter", "log_to_stderr", "make_safe", "one_line", "several_lines"]

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
INDENT: Final = "    "  # before the lines of a traceback: only a record starts in the first column

# C0 and C1 controls but the tab, DEL, the bidirectional overrides and the line separators:
# everything that moves a cursor, colours, hides or reorders text, or begins a line.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def one_line(text: str) -> str:
    """Return ``text`` with control characters as escapes and U+FFFD for lone surrogates."""
    return replace_surrogates(_CONTROL.sub(lambda match: _escape(match[0]), text))


def several_lines(text: str) -> str:
    """Return the same, but the line feeds stay."""
    return "\n".join(one_line(line) for line in text.split("\n"))


class LineFormatter(logging.Formatter):
    """What a provider, a document or an error says stays inside its record's line.

    A traceback follows its record in lines of its own, each indented, so that none of them can be
    taken for a record.
    """

    def __init__(self, fmt: str = FORMAT) -> None:
        super().__init__(fmt)

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # another handler's formatter may have left its own there
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(redact(super().formatMessage(record)))

    def formatException(self, ei: _ExcInfo | Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log to stderr where this process has no log yet; a log that is there is made safe."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
        logging.getLogger().setLevel(level)
    make_safe(logging.getLogger())


def make_safe(logger: logging.Logger) -> None:
    """Give this module's formatter to the handlers of a logger that other code has set up."""
    for handler in logger.handlers:
        if not isinstance(handler.formatter, LineFormatter):
            handler.setFormatter(LineFormatter())
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LineFormatter("%(message)s"))


def _indented(text: str) -> str:
    return "\n".join(INDENT + one_line(line) for line in redact(text).split("\n"))


def _escape(character: str) -> str:
    if character == "\n":
        return "\\n"
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

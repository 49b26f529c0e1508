"""Foreign text made harmless, numbers made readable: the same at a terminal and on a page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

__all__ = [
    "argument",
    "asked_again",
    "count",
    "counted",
    "counts_in_words",
    "duration",
    "one_line",
    "percent",
    "rate",
    "safe",
    "usd",
]


def safe(text: str) -> str:
    """Return foreign text with its control characters shown as escapes.

    It may be a provider's or a document's. Tabs and newlines stay. Lone surrogates, which no
    terminal encoding takes, become U+FFFD.
    """
    # here, since the package brings SQLAlchemy with it
    from penstock_ledger.redaction import several_lines

    return several_lines(text)


def argument(value: str) -> str:
    """Return a value as the user has to type it inside a command that we print."""
    return shlex.quote(safe(value))


def one_line(text: str, width: int = 100) -> str:
    """Return foreign text on one line of at most ``width`` characters."""
    line = " ".join(safe(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def count(number: int) -> str:
    return f"{number:,}"


def asked_again(repairs: int, fallbacks: int) -> str:
    """Return what follows the figures of calls where documents were asked more than once."""
    found = f" · {count(repairs)} asked again for the schema" if repairs else ""
    return found + (f" · {count(fallbacks)} asked of another model" if fallbacks else "")


def counted(number: int, noun: str) -> str:
    """Return ``1 worker``, ``2 workers``."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def counts_in_words(counts: Mapping[str, int]) -> str:
    """Return ``missing_field 3, invalid_id 1``, the most first."""
    most_first = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name} {count(number)}" for name, number in most_first)


def percent(part: int, whole: int) -> str:
    """Return a share that never lies at its ends: 100 % and 0 % only when it is exactly that."""
    if whole == 0:
        return "0 %"
    share = 100 * part / whole
    shown = f"{share:.1f}"
    if shown == "100.0" and part < whole:
        shown = "99.9"
    if shown == "0.0" and part > 0:
        shown = "<0.1"
    return f"{shown.removesuffix('.0')} %"


def duration(seconds: float) -> str:
    """Return ``0.4 s``, ``12 s``, ``3 min 05 s``, ``2 h 07 min``, ``3 d 04 h``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def usd(amount: float) -> str:
    """Return dollars with cents, and below a dollar with the fractions of a cent."""
    if 0 < amount < 0.000_05:
        return "<$0.0001"
    return f"${amount:,.4f}" if 0 < amount < 1 else f"${amount:,.2f}"


def rate(per_second: float) -> str:
    return f"{per_second:,.1f}/s" if per_second < 100 else f"{per_second:,.0f}/s"

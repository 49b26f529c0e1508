"""Pages of a list: the newest first, from behind or before one that the client names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock_simulate.answers import refusals
from penstock_simulate.batches.refused import Refused


def limit_of(query: Mapping[str, str], default: int, most: int) -> int:
    """The page's length. Raises Refused for one that cannot be used."""
    given = query.get("limit", str(default))
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given) <= most:
        raise Refused(
            refusals.invalid(
                f"Invalid 'limit': {given!r}. Give a whole number from 1 to {most}.", "limit"
            )
        )
    return int(given)


def after(names: Sequence[str], name: str | None, limit: int) -> tuple[Sequence[str], bool]:
    """The page behind ``name`` (from the start without one), and whether more follow.

    Raises Refused for an unknown one."""
    start = 0 if name is None else _place(names, name, "after") + 1
    return names[start : start + limit], start + limit < len(names)


def before(names: Sequence[str], name: str, limit: int) -> tuple[Sequence[str], bool]:
    """The page that ends before ``name``, and whether more come before it."""
    end = _place(names, name, "before_id")
    start = max(0, end - limit)
    return names[start:end], start > 0


def listed(shown: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """A page as OpenAI and Anthropic write it, but for the name of its kind."""
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"data": shown, "first_id": first, "last_id": last, "has_more": more}


def _place(names: Sequence[str], name: str, param: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise Refused(
            refusals.invalid(f"No object with the id {name!r} found in this list.", param)
        ) from None

"""Lists of batches and files, page by page, each with an end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple

from penstock_workers.lanes.batch.apis.http import BatchHttp
from penstock_workers.lanes.batch.apis.reading import identifier, rows
from penstock_workers.lanes.batch.provider import AccountStopped

MAX_PAGES: Final = 200  # 20,000 batches in pages of 100
MAX_PAGE_ROWS: Final = 1_000


class Listing(NamedTuple):
    """How a provider's lists are asked and turned over."""

    rows: str  # the field of an answer with its rows
    place: str  # the parameter that says where the next page begins
    next_page: (
        str | None
        # the field of an answer with that place; None: the id of its last row, where `has_more` is
        # true
    )
    full_page: int | None = None  # pages have numbers, from 0: rows of one that another one follows


Page = list[Mapping[str, Any]]


async def pages(
    http: BatchHttp, listing: Listing, path: str, query: Mapping[str, str]
) -> AsyncGenerator[Page, None]:
    """Raises AccountStopped where the list has no end that a program can reach."""
    seen: set[str] = set()
    place: dict[str, str] = {}
    for number in range(MAX_PAGES):
        heard = await http.heard("GET", path, query={**query, **place})
        answer = http.object_of(heard, once=False, rows=listing.rows)
        if not isinstance(answer.get(listing.rows, []), list):
            raise http.unusable(f"the list {path} has no {listing.rows}", once=False)
        page = rows(answer.get(listing.rows), MAX_PAGE_ROWS)
        yield page
        next_place = _next(listing, answer, page, number)
        if next_place is None:
            return
        if next_place in seen:
            break
        seen.add(next_place)
        place = {listing.place: next_place}
    raise AccountStopped(
        f"provider {http.account.name}: the list {path} has more than {MAX_PAGES} pages, or begins "
        "again and again, so that it does not show what is there; take old entries from the "
        "account"
    )


def _next(listing: Listing, answer: Mapping[str, Any], page: Page, number: int) -> str | None:
    if listing.full_page is not None:
        return str(number + 1) if len(page) >= listing.full_page else None
    if listing.next_page is not None:
        return identifier(answer.get(listing.next_page))
    return identifier(page[-1].get("id")) if page and answer.get("has_more") is True else None

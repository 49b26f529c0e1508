"""Prompts whose beginning is cached, as Anthropic's are: what is read and what is written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from penstock_simulate.answers.answers import CHARS_PER_TOKEN

LEAST_TOKENS = 1024  # a shorter beginning is not cached
KEPT_S = 300.0  # since the last use
MAX_KEPT = 10_000  # beginnings; the ones used longest ago go first


class CacheUse(NamedTuple):
    """Tokens of one prompt."""

    written: int = 0
    read: int = 0


NO_CACHE = CacheUse()


class Prefix(NamedTuple):
    """The prompt up to a mark."""

    digest: bytes
    tokens: int


def prefixes(parts: Iterable[tuple[str, bool]]) -> Sequence[Prefix]:
    """Return the prefixes that are long enough, the shortest first.

    Each part has its text, and whether a mark follows it."""
    found, chars, digest = [], 0, blake2b(digest_size=16)
    for text, marked in parts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        chars += len(text)
        if marked and chars // CHARS_PER_TOKEN >= LEAST_TOKENS:
            found.append(Prefix(digest.copy().digest(), chars // CHARS_PER_TOKEN))
    return found


class PromptCache:
    """The prompt cache of one account.

    Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def look(self, marked: Sequence[Prefix], now: float) -> CacheUse:
        """Return what a prompt with these marks reads and writes.

        Nothing changes: the call may be refused yet."""
        longest = marked[-1].tokens if marked else 0
        read = max(
            (prefix.tokens for prefix in marked if self._until.get(prefix.digest, 0.0) > now),
            default=0,
        )
        return CacheUse(longest - read, read)

    def use(self, marked: Sequence[Prefix], now: float) -> None:
        """Keep the beginnings of an answered call for a while."""
        for prefix in marked:
            self._until[prefix.digest] = now + KEPT_S
            self._until.move_to_end(prefix.digest)
        while len(self._until) > MAX_KEPT:
            self._until.popitem(last=False)

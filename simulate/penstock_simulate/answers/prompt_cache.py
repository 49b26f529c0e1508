"""An account's cache knows beginnings of prompts, of which some are read and some written.

Anthropic, and OpenAI from GPT-5.6 on, keep what is marked and charge for writing it; others keep
each beginning in steps by themselves. A beginning can be read once the answer to a request with it
has come: requests that arrive before that write it again, or pay in full.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from penstock_simulate.answers.answers import CHARS_PER_TOKEN, chars_per_token

LEAST_TOKENS = 1024  # a shorter beginning is not cached
LEAST_OF_GEMINI = 2048
STEP_TOKENS = 128  # of beginnings that are kept without marks
KEPT_S = 300.0  # since the last use
KEPT_BY_OPENAI_S = 1800.0  # with marks
HOUR_S = 3600.0
WRITE_PRICE, HOUR_PRICE = 1.25, 2.0  # of a token that is written, in ordinary ones
MAX_KEPT = 100_000  # beginnings; the ones used longest ago go first
UNCACHED_IN_BATCHES: Final = re.compile("gpt-4|o1|o3|o4")
MARKED_MODEL: Final = re.compile(r"gpt-5\.(?:[6-9]|\d\d)|gpt-(?:[6-9]|\d\d)")


class CacheUse(NamedTuple):
    """Tokens of one prompt."""

    written: int = 0  # as far as that is charged for
    read: int = 0
    written_hour: int = 0  # of those written, to be kept for an hour

    @property
    def extra(self) -> float:
        """The price of writing beyond that of ordinary tokens, in those."""
        for_hour = self.written_hour * (HOUR_PRICE - 1)
        return (self.written - self.written_hour) * (WRITE_PRICE - 1) + for_hour


NO_CACHE = CacheUse()


class Prefix(NamedTuple):
    """The prompt up to a mark, or to a step."""

    digest: bytes
    tokens: int
    kept_s: float = KEPT_S
    price: float = 1.0  # of writing a token of it


def prefixes(parts: Iterable[tuple[str, float | None]], model: str = "") -> Sequence[Prefix]:
    """Return the marked prefixes that are long enough, the shortest first.

    Each part has its text, and how long what is marked behind it is kept; None where no mark is."""
    found, chars, digest, parts = [], 0, _digest_of(model), list(parts)
    each = chars_per_token("".join(text for text, _ in parts))
    for text, kept_s in parts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        chars += len(text)
        tokens = int(chars // each)
        if kept_s is not None and tokens >= LEAST_TOKENS:
            price = HOUR_PRICE if kept_s == HOUR_S else WRITE_PRICE
            found.append(Prefix(digest.copy().digest(), tokens, kept_s, price))
    return found


def steps_of(model: str, text: str, least: int = LEAST_TOKENS) -> Sequence[Prefix]:
    """Return the prefixes of a prompt that are kept without marks; of models one by one."""
    each = chars_per_token(text)
    if len(text) < least * each:
        return ()
    # steps are as long for all prompts, whatever their tokens are
    step, found = STEP_TOKENS * CHARS_PER_TOKEN, []
    digest = _digest_of(model)
    for end in range(step, len(text) + 1, step):
        digest.update(text[end - step : end].encode("utf-8", "surrogatepass"))
        if end >= least * each:
            found.append(Prefix(digest.copy().digest(), int(end // each)))
    return found


def prefixes_of_chat(model: str, body: Mapping[str, Any]) -> Sequence[Prefix]:
    """Return the prefixes of a chat that OpenAI keeps."""
    parts = [_part(message, part) for message in body["messages"] for part in _parts(message)]
    if MARKED_MODEL.match(model) is None:
        return steps_of(model, "".join(text for text, _ in parts))
    options = body.get("prompt_cache_options")
    if not (isinstance(options, dict) and options.get("mode") == "explicit") and parts:
        parts[-1] = (parts[-1][0], KEPT_BY_OPENAI_S)
    return prefixes(parts, model)


def _digest_of(model: str) -> blake2b:
    return blake2b(model.encode("utf-8", "surrogatepass"), digest_size=16)


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [content]


def _part(message: Mapping[str, Any], part: Any) -> tuple[str, float | None]:
    said = part.get("text") if isinstance(part, dict) else part
    marked = isinstance(part, dict) and bool(part.get("prompt_cache_breakpoint"))
    return said if isinstance(said, str) else "", KEPT_BY_OPENAI_S if marked else None


class PromptCache:
    """The prompt cache of one account.

    Times are seconds of the caller's clock."""

    def __init__(self, kept_s: float | None = None) -> None:
        self.kept_s = kept_s  # in the place of what providers say
        self._kept: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # from when until when

    def look(self, found: Sequence[Prefix], now: float) -> CacheUse:
        """Return what a prompt with these prefixes reads and writes.

        Nothing changes: the call may be refused yet."""
        read = max((one.tokens for one in found if self._has(one, now)), default=0)
        before, written, for_hour = read, 0, 0
        for one in found:
            if one.tokens > before and one.price > 1:
                written += one.tokens - before
                for_hour += one.tokens - before if one.price == HOUR_PRICE else 0
                before = one.tokens
        return CacheUse(written, read, for_hour)

    def use(self, found: Sequence[Prefix], now: float, answered: float) -> None:
        """Keep the beginnings of a call that is answered at ``answered``."""
        for one in found:
            since, until = self._kept.get(one.digest, (answered, now))
            since = min(since, answered) if until > now else answered
            kept_s = one.kept_s if self.kept_s is None else self.kept_s
            self._kept[one.digest] = (since, answered + kept_s)
            self._kept.move_to_end(one.digest)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def read_in_batch(self, found: Sequence[Prefix]) -> CacheUse:
        """Return what the next request of a batch reads and writes; batches have no clock."""
        used = self.look(found, 0.0)
        self.use(found, 0.0, 0.0)
        return used

    def _has(self, one: Prefix, now: float) -> bool:
        since, until = self._kept.get(one.digest, (now, now))
        return since <= now < until

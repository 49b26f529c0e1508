"""The beginnings that prompts of a source share: found in one pass, and known again in workers.

A prompt is read in blocks: each of its pieces (tools, system text, messages) is cut every
``BLOCK_CHARS`` characters, and begins a block of its own. Beginnings are counted as a tree of
blocks in which a run without a branch is one node. Memory is bounded: beyond ``TREE_BYTES`` the
prompts whose end was shared least, and longest ago, are forgotten. So a beginning is found where
those that share it are not too far apart, and only then a provider's cache has it still.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

from penstock_producer.dialects.prompt_caches import (
    CacheRules,
    Cut,
    Piece,
    laid_out,
    parted,
    pieces_of,
    rules_of,
    with_cache,
)
from penstock_producer.pins import PREFIXES

__all__ = [
    "Behind",
    "CachedPrompts",
    "Level",
    "PrefixFinder",
    "Prefixes",
    "Shared",
    "cached_tokens",
    "held_as",
    "kept_groups",
]

BLOCK_CHARS: Final = 256  # 64 tokens of English: by so much a beginning may be cut short
BLOCKS_MAX: Final = 16_384  # of one prompt, four million characters: no model's context has more
HASH_BYTES: Final = 6  # of a block: a branch is taken for another one in 10^14 of them
SIZE_BYTES: Final = 2  # the characters of a block
ENTRY_BYTES: Final = HASH_BYTES + SIZE_BYTES
TREE_BYTES: Final = 16 * 1024 * 1024  # of blocks, with their nodes; of the process half more
NODE_BYTES: Final = 250  # what a node takes beside its blocks
NAME_BYTES: Final = 6  # of a group, among at most GROUPS_MAX
DEPTH_BYTES: Final = 2
GROUPS_MAX: Final = 4_096
"""Groups that are kept with the job, 44 kB of it: those that save most. Documents of others are
sent like those that share nothing."""
DOCUMENTS_MIN: Final = 3
"""Two documents with one beginning save a third of it at best, and lose a quarter where the second
comes too late."""
STEP_TOKENS: Final = 128
"""A longer beginning of some documents is a group of its own from so many tokens on: providers
count in such steps."""


class Shared(NamedTuple):
    """A beginning that several documents have."""

    name: bytes
    depth: int  # in blocks
    documents: int
    tokens: float
    new_tokens: float  # behind the beginning of the group that it is a part of
    parent: bytes = b""  # the name of that group; empty where there is none


class _Node:
    __slots__ = ("children", "count", "run", "seen")

    def __init__(self, run: bytes, count: int, seen: int) -> None:
        self.run = run  # blocks, up to the next branch
        self.count = count  # documents that have all of it
        self.seen = seen  # the number of the latest of them
        self.children: dict[bytes, _Node] = {}


class PrefixFinder:
    """Counts beginnings; ``add`` each request, then ask for the groups ``found``."""

    def __init__(self, endpoint: str, *, most_bytes: int = TREE_BYTES) -> None:
        self._endpoint, self._most_bytes = endpoint, most_bytes
        self._root = _Node(b"", 0, 0)
        self._documents = 0
        self.held = 0  # bytes
        self.chars = 0  # of all prompts

    def add(self, body: bytes) -> None:
        """Count one request."""
        self._documents += 1
        blocks = bytearray()
        for piece in pieces_of(body, self._endpoint):
            self.chars += len(piece.text)
            if len(blocks) < BLOCKS_MAX * ENTRY_BYTES:
                blocks += b"".join(block for block, _ in _blocks((piece,)))
        self._count(bytes(blocks[: BLOCKS_MAX * ENTRY_BYTES]))
        if self.held > self._most_bytes:
            self._forget()

    def found(self, least_tokens: int, tokens_in: float) -> list[Shared]:
        """Return the groups, those first that save most.

        ``tokens_in``: of all prompts together; a beginning has as many for each character."""
        groups: list[Shared] = []
        per_char = tokens_in / self.chars if self.chars else 0.0
        waiting = [(child, b"", 0.0, b"") for child in self._root.children.values()]
        while waiting:
            node, path, within, parent = waiting.pop()
            if node.count < DOCUMENTS_MIN:
                continue
            path += node.run
            tokens = _chars(path) * per_char
            if tokens >= max(least_tokens, within + STEP_TOKENS):
                depth = len(path) // ENTRY_BYTES
                name, new = _name(path), tokens - within
                groups.append(Shared(name, depth, node.count, tokens, new, parent))
                within, parent = tokens, name
            waiting += ((child, path, within, parent) for child in node.children.values())
        groups.sort(key=_saves, reverse=True)
        return groups[:GROUPS_MAX]

    def _count(self, blocks: bytes) -> None:
        node, at = self._root, 0
        while True:
            node.count += 1
            node.seen = self._documents
            if at == len(blocks):
                return
            child = node.children.get(blocks[at : at + ENTRY_BYTES])
            if child is None:
                new = _Node(blocks[at:], 1, self._documents)
                node.children[new.run[:ENTRY_BYTES]] = new
                self.held += len(new.run) + NODE_BYTES
                return
            same = _common(child.run, blocks, at)
            if same < len(child.run):
                below = _Node(child.run[same:], child.count, child.seen)
                below.children = child.children
                child.run, child.children = child.run[:same], {below.run[:ENTRY_BYTES]: below}
                self.held += NODE_BYTES
            node, at = child, at + same

    def _forget(self) -> None:
        """Forget the half of the ends that were shared least, and longest ago."""
        ends = [
            (child.count, child.seen, id(child), node, child)
            for node in _all_of(self._root)
            for child in node.children.values()
            if not child.children
        ]
        ends.sort(key=lambda end: end[:3])
        for *_, node, child in ends[: (len(ends) + 1) // 2]:
            del node.children[child.run[:ENTRY_BYTES]]
            self.held -= len(child.run) + NODE_BYTES


class Level(NamedTuple):
    """A shared beginning of one request."""

    name: str
    cut: Cut


class Prefixes:
    """The groups of a job, as workers know them: by the depth and the name of each."""

    def __init__(self, groups: Mapping[int, frozenset[bytes]]) -> None:
        self._groups = groups
        self._deepest = max(groups, default=0)

    @classmethod
    def of(cls, stored: str) -> Self:
        """Return the groups as ``kept_groups`` wrote them."""
        packed = base64.b64decode(stored)
        groups: dict[int, set[bytes]] = {}
        for at in range(0, len(packed), DEPTH_BYTES + NAME_BYTES):
            depth, name = packed[at : at + DEPTH_BYTES], packed[at + DEPTH_BYTES :][:NAME_BYTES]
            groups.setdefault(int.from_bytes(depth), set()).add(name)
        return cls({depth: frozenset(names) for depth, names in groups.items()})

    def levels(self, body: bytes, endpoint: str) -> list[Level]:
        """Return the shared beginnings of a request, the shortest first."""
        pieces = pieces_of(body, endpoint)
        path, found, depth = bytearray(), list[Level](), 0
        for at, piece in enumerate(pieces):
            chars = 0
            for block, more in _blocks((piece,)):
                depth, chars = depth + 1, chars + more
                if depth > self._deepest:
                    return found
                path += block
                names = self._groups.get(depth)
                if names is not None and (name := _name(path)) in names:
                    found.append(Level(name.hex(), Cut(at, _between_words(piece.text, chars))))
        return found


class CachedPrompts(NamedTuple):
    """The requests of a job, as its provider's prompt cache wants them."""

    prefixes: Prefixes
    rules: CacheRules
    endpoint: str
    model: str | None = None  # whose rules these are; None: of all
    rented: frozenset[str] = frozenset()  # beginnings with an explicit cache each, by their names

    @classmethod
    def of(
        cls, source: Mapping[str, Any], kind: str, base_url: str, endpoint: str, *, packs: bool
    ) -> Self | None:
        """Return those of an accepted job by its source; None where it uses no cache.

        ``packs``: they go into batches."""
        kept = source.get(PREFIXES)
        if not isinstance(kept, Mapping):
            return None
        rules = rules_of(kind, base_url, kept["model"], packs=packs)
        if not rules.is_there:
            return None
        names = base64.b64decode(kept.get("rented", "")) if rules.rents else b""
        rented = (names[at : at + NAME_BYTES].hex() for at in range(0, len(names), NAME_BYTES))
        prefixes = Prefixes.of(kept["groups"])
        return cls(prefixes, rules, endpoint, kept["model"], frozenset(rented))

    def levels(self, body: bytes) -> list[Level]:
        """Return the shared beginnings of a request, the shortest first."""
        return self.prefixes.levels(body, self.endpoint)

    def is_rented(self, levels: Sequence[Level]) -> bool:
        """Return whether one of these beginnings has an explicit cache."""
        return any(one.name in self.rented for one in levels)

    def parted(self, body: bytes, levels: Sequence[Level]) -> tuple[bytes, bytes] | None:
        """Return what an explicit cache holds of a request, and the rest; None where none is due.

        It is that of the longest beginning which has one."""
        cut = next((one.cut for one in reversed(levels) if one.name in self.rented), None)
        return None if cut is None else parted(body, self.endpoint, cut, self.model)

    def laid_out(self, body: bytes, levels: Sequence[Level]) -> bytes:
        """Return a request with these beginnings marked, as far as its provider wants that."""
        if not levels:
            return body
        cuts = [level.cut for level in levels]
        return laid_out(body, self.endpoint, cuts, self.rules, levels[-1].name, self.model)


class Behind:
    """The explicit cache that one request begins with."""

    def __init__(self, latest: Callable[[], str | None], held: str) -> None:
        self._latest, self._held = latest, held  # its name of the moment: it may be made anew
        self.name = ""  # that the request says
        self.whole: bytes | None = None  # the request without it, once it says the name
        self.is_gone = False  # the provider has it no more

    def asked(self, cached: CachedPrompts, body: bytes, levels: Sequence[Level]) -> bytes:
        """Return the request behind the cache; whole where that holds another beginning."""
        parts, name = cached.parted(body, levels), self._latest()
        self.whole = None
        if parts is None or name is None or held_as(parts[0]) != self._held:
            return body
        self.name, self.whole = name, body
        return with_cache(parts[1], name)


def held_as(held: bytes) -> str:
    """Return a name for what a cache holds."""
    return blake2b(held, digest_size=12).hexdigest()


def kept_groups(
    groups: Sequence[Shared], model: str | None, rented: Iterable[bytes] = ()
) -> dict[str, Any]:
    """Return groups as a job keeps them, with the model whose cache they are for.

    ``rented``: the names of those that have an explicit cache."""
    packed = b"".join(one.depth.to_bytes(DEPTH_BYTES) + one.name for one in groups)
    names = base64.b64encode(b"".join(rented)).decode()
    kept = {"groups": base64.b64encode(packed).decode(), "model": model}
    return kept | ({"rented": names} if names else {})


def cached_tokens(groups: Sequence[Shared]) -> tuple[int, int]:
    """Return the tokens that a cache is read for, and those written, each of them once."""
    written = sum(one.new_tokens for one in groups)
    return round(sum(_saves(one) for one in groups)), round(written)


def _saves(group: Shared) -> float:
    return group.new_tokens * (group.documents - 1)


def _blocks(pieces: Sequence[Piece]) -> Iterator[tuple[bytes, int]]:
    """Yield the blocks of a prompt, each with its number of characters."""
    for piece in pieces:
        text = piece.text
        for at in range(0, len(text) or 1, BLOCK_CHARS):
            part = text[at : at + BLOCK_CHARS]
            said = part if at else f"{piece.head}\0{part}"
            digest = blake2b(said.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES)
            yield digest.digest() + len(part).to_bytes(SIZE_BYTES), len(part)


def _between_words(text: str, chars: int) -> int:
    """Return where a text is cut: behind the last blank of the block that ends there."""
    if chars == len(text):
        return chars
    blank = max(text.rfind(mark, chars - BLOCK_CHARS, chars) for mark in (" ", "\n"))
    return chars if blank < 0 else blank + 1


def _name(path: bytes | bytearray) -> bytes:
    return blake2b(path, digest_size=NAME_BYTES).digest()


def _chars(path: bytes) -> int:
    return sum(
        int.from_bytes(path[at + HASH_BYTES : at + ENTRY_BYTES])
        for at in range(0, len(path), ENTRY_BYTES)
    )


def _common(run: bytes, blocks: bytes, at: int) -> int:
    """Return how many bytes of ``run`` stand in ``blocks`` from ``at`` on, in whole blocks."""
    if blocks.startswith(run, at):
        return len(run)
    low, high = 0, min(len(run), len(blocks) - at) // ENTRY_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        same = blocks.startswith(run[: middle * ENTRY_BYTES], at)
        low, high = (middle, high) if same else (low, middle - 1)
    return low * ENTRY_BYTES


def _all_of(root: _Node) -> Iterator[_Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting += node.children.values()
        yield node

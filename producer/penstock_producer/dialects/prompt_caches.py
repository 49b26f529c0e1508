"""The prompt caches of providers: their rules, and how a request is laid out for them.

A cache knows a prompt by its beginning: tools, system text and messages, in this order. Some
providers keep every beginning by themselves; others keep what a request marks, and only that is
read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from penstock_producer.dialects import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES

__all__ = [
    "CacheRules",
    "Cut",
    "Piece",
    "has_cached_prompts",
    "laid_out",
    "parted",
    "pieces_of",
    "rules_of",
    "with_cache",
    "without_marks",
]


class CacheRules(NamedTuple):
    """The rules of a provider's cache for one model.

    What providers publish, as read on 2026-11-28: developers.openai.com/api/docs/guides/
    prompt-caching, platform.claude.com/docs/en/build-with-claude/prompt-caching,
    ai.google.dev/gemini-api/docs/caching."""

    least_tokens: int  # a shorter beginning is not kept
    lifetime_s: float  # since its last use
    # the request says where the beginning ends; without marks each is found by the provider itself
    marked: bool = False
    # a beginning that was kept is read for sure; elsewhere as far as the same machine is met
    is_sure: bool = False
    # the field that takes requests with the same beginning to the same machine
    key_field: str | None = None
    is_there: bool = True  # batches of some models have none
    # beside it, what a call names and pays rent for is kept, and read for sure
    rents: bool = False


FIVE_MINUTES_S: Final = 300.0
HALF_AN_HOUR_S: Final = 1_800.0
HOUR_S: Final = 3_600.0
# From GPT-5.6 on a beginning is kept at a mark and nowhere else, and the mark that OpenAI sets
# itself stands at the end of the newest message, which no other document has.
_MARKED_BY_OPENAI: Final = re.compile(r"gpt-5\.(?:[6-9]|\d\d)|gpt-(?:[6-9]|\d\d)")
# whose cached tokens cost in batches what others do
_NOT_IN_BATCHES: Final = re.compile(r"gpt-4|o1|o3|o4")
# which models have explicit caches, by ai.google.dev/gemini-api/docs/generate-content/caching;
# those of Vertex AI have addresses and prices of their own
_RENTED: Final = re.compile(r"gemini-(?:2\.5|3)")
# of Claude's models, by what their names begin with; where none fits, the most that any of them has
_LEAST_OF_CLAUDE: Final[Sequence[tuple[str, int]]] = (
    ("claude-opus-5", 512),
    ("claude-fable-5", 512),
    ("claude-sonnet-5", 1_024),
    ("claude-opus-4-8", 1_024),
    ("claude-opus-4-7", 4_096),
    ("claude-opus-4-6", 4_096),
    ("claude-opus-4-5", 4_096),
    ("claude-haiku-4-5", 4_096),
    ("claude-sonnet-4-6", 2_048),
    ("claude-sonnet-4", 1_024),
    ("claude-opus-4", 1_024),
    ("claude-3-7", 1_024),
    ("claude-sonnet-3-7", 1_024),
    ("claude-3-5-haiku", 2_048),
    ("claude-3-5-sonnet", 1_024),
    ("claude-3-haiku", 2_048),
    ("claude-3-opus", 1_024),
)
_MOST_OF_CLAUDE: Final = 4_096
_AUTOMATIC: Final = 1_024  # of OpenAI, and of others that say nothing


def rules_of(kind: str, base_url: str, model: str | None, *, packs: bool = False) -> CacheRules:
    """Return the rules of a provider for a model.

    ``packs``: in its batches, which take longer than five minutes."""
    name = (model or "").rpartition("/")[2]
    if kind == "anthropic":
        known = (least for start, least in _LEAST_OF_CLAUDE if name.startswith(start))
        least = next(known, _MOST_OF_CLAUDE)
        return CacheRules(least, HOUR_S if packs else FIVE_MINUTES_S, marked=True, is_sure=True)
    if kind == "bedrock":  # caches where a request marks it, and by which model is not known here
        return CacheRules(_MOST_OF_CLAUDE, FIVE_MINUTES_S, is_there=False)
    if kind in ("gemini", "vertex"):
        rents = kind == "gemini" and not packs and _RENTED.match(name) is not None
        return CacheRules(2_048 if "2.5" in name else 4_096, FIVE_MINUTES_S, rents=rents)
    is_openai = _is_openai(base_url)
    marked = _MARKED_BY_OPENAI.match(name) is not None
    return CacheRules(
        _AUTOMATIC,
        HALF_AN_HOUR_S if marked else FIVE_MINUTES_S,
        marked=marked,
        is_sure=marked,
        key_field="prompt_cache_key" if is_openai and not packs else None,
        is_there=not (packs and is_openai and _NOT_IN_BATCHES.match(name)),
    )


def _is_openai(base_url: str) -> bool:
    """Return whether it is OpenAI, or OpenAI's models at Azure; others may refuse its fields."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        return False
    return host == "api.openai.com" or host.endswith(".openai.azure.com")


class Place(NamedTuple):
    """A place in a request: a field, the number of a message, and of a part of its content."""

    field: str
    turn: int | None = None
    part: int | None = None


class Piece(NamedTuple):
    """A part of a prompt, in the order in which a cache reads it."""

    head: str  # who says it
    text: str
    place: Place | None = None  # None where no mark can stand behind it
    splits: bool = True  # whether a mark may stand within it


class Cut(NamedTuple):
    """An end of a shared beginning: the piece, and how many of its characters belong to it."""

    piece: int
    chars: int


_CHATS: Final = frozenset({CHAT, RESPONSES, MESSAGES})
_FIRST: Final[Mapping[str, Sequence[str]]] = {
    CHAT: ("tools", "response_format"),
    RESPONSES: ("tools", "text"),
    MESSAGES: ("tools",),
    GENERATE: ("tools",),
    COMPLETIONS: (),
}
_SYSTEM: Final[Mapping[str, str]] = {
    RESPONSES: "instructions",
    MESSAGES: "system",
    GENERATE: "systemInstruction",
}
_TURNS: Final[Mapping[str, str]] = {
    CHAT: "messages",
    RESPONSES: "input",
    MESSAGES: "messages",
    GENERATE: "contents",
    COMPLETIONS: "prompt",
}
_read: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_write: Final = msgspec.json.encode


def has_cached_prompts(endpoint: str) -> bool:
    """Return whether requests to it have prompts that a provider's cache may know."""
    return endpoint in _TURNS


def pieces_of(body: bytes, endpoint: str) -> list[Piece]:
    """Return the prompt of a request in pieces; none where it has none, or cannot be read."""
    if not has_cached_prompts(endpoint):
        return []
    try:
        fields = _read.decode(body)
        return list(_pieces(fields, endpoint))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []  # its provider says what is wrong with it


def _pieces(fields: Mapping[str, msgspec.Raw], endpoint: str) -> Iterator[Piece]:
    for name in _FIRST[endpoint]:
        if name in fields:
            text = bytes(fields[name]).decode()
            tools = _parsed(fields[name]) if endpoint == MESSAGES else None
            may_end = isinstance(tools, list) and tools and isinstance(tools[-1], dict)
            yield Piece(name, text, Place(name) if may_end else None, splits=False)
    system = _SYSTEM.get(endpoint)
    if system is not None and system in fields:
        yield from _contents(endpoint, "system", _parsed(fields[system]), Place(system))
    name = _TURNS[endpoint]
    turns = _parsed(fields[name]) if name in fields else []
    if not isinstance(turns, list):
        yield from _contents(endpoint, "user", turns, Place(name))
        return
    for at, turn in enumerate(turns):
        if not isinstance(turn, dict):
            yield Piece("", _write(turn).decode())
            continue
        others = {key: turn[key] for key in turn if key not in ("role", "content", "parts")}
        head = str(turn.get("role")) + (_write(others).decode() if others else "")
        content = turn.get("content", turn.get("parts"))
        yield from _contents(endpoint, head, content, Place(name, at))


def _contents(endpoint: str, head: str, content: Any, place: Place) -> Iterator[Piece]:
    """Yield a content's parts: the text of those that are text, the others by their digest.

    An image is so many characters in a request, and none of the prompt."""
    may_end = endpoint == MESSAGES or (
        endpoint in _CHATS and place.field != "instructions" and not head.startswith("assistant")
    )
    if isinstance(content, str):
        yield Piece(head, content, place if may_end else None)
        return
    if isinstance(content, dict):  # of Gemini's system text
        content = content.get("parts")
    for index, part in enumerate(content if isinstance(content, list) else [content]):
        takes = isinstance(part, dict) and part.get("type") not in _UNMARKABLE
        its_place = place._replace(part=index) if may_end and takes else None
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield Piece(head, part["text"], its_place)
        else:
            whole = its_place if endpoint == MESSAGES else None
            digest = blake2b(_write(part), digest_size=8).hexdigest()
            yield Piece(head, digest, whole, splits=False)


def _parsed(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)


_UNMARKABLE: Final = ("thinking", "redacted_thinking")  # parts of Anthropic's that take no mark
# what a cache of Gemini holds beside contents
_HELD: Final[Sequence[str]] = ("tools", "toolConfig", "systemInstruction")
_OWN_MARKS: Final = (b'"cache_control"', b'"prompt_cache_')
MARKS_MAX: Final = 4  # in a request to Anthropic or OpenAI


def laid_out(
    body: bytes,
    endpoint: str,
    cuts: Sequence[Cut],
    rules: CacheRules,
    key: str,
    model: str | None = None,
) -> bytes:
    """Return a request with a mark behind each shared beginning, where its provider wants marks.

    ``cuts``: the shortest first; ``key`` names the longest. A request with marks of its own stays
    as it is, and so does one for another ``model`` than that of these rules. What is not marked is
    not written anew, so that its numbers stay as they came."""
    if not cuts or any(mark in body for mark in _OWN_MARKS):
        return body
    fields = _read.decode(body)
    if model is not None and "model" in fields and _parsed(fields["model"]) != model:
        return body
    if rules.marked and endpoint in _CHATS:
        _mark(fields, endpoint, cuts, rules)
    if rules.key_field is not None and endpoint in (CHAT, RESPONSES):
        fields[rules.key_field] = msgspec.Raw(_write(key))
    return _write(fields)


def parted(body: bytes, endpoint: str, cut: Cut, model: str | None) -> tuple[bytes, bytes] | None:
    """Return what a cache of Gemini holds of a request up to a cut, and the request without it.

    None where nothing would be left to ask, or the cut lies within what cannot be parted. Tools and
    the system text belong to the cache: a request that names one may not say them."""
    if endpoint != GENERATE or b'"cachedContent"' in body:
        return None
    fields = _read.decode(body)
    if model is not None and "model" in fields and _parsed(fields["model"]) != model:
        return None
    held: dict[str, msgspec.Raw] = {name: fields.pop(name) for name in _HELD if name in fields}
    ahead = [*_pieces(held, endpoint)]
    contents = _parsed(fields["contents"]) if "contents" in fields else None
    if not isinstance(contents, list):
        return None
    turns = [turn if isinstance(turn, dict) else {} for turn in contents]
    at = cut.piece - len(ahead)
    if at < 0:
        is_whole = at == -1 and cut.chars == len(ahead[-1].text)
        kept, left = (list[Any](), turns) if is_whole else (turns, list[Any]())
    else:
        kept, left = _split(turns, at, cut.chars)
    if not left or not all(isinstance(turn.get("parts"), list) for turn in turns):
        return None
    if kept:
        held["contents"] = msgspec.Raw(_write(kept))
    fields["contents"] = msgspec.Raw(_write(left))
    return _write(held), _write(fields)


def with_cache(body: bytes, name: str) -> bytes:
    """Return a request that ``parted`` has left, behind a cache with this name."""
    return _write({**_read.decode(body), "cachedContent": name})


def _split(turns: Sequence[dict[str, Any]], at: int, chars: int) -> tuple[list[Any], list[Any]]:
    """Return turns up to the character of a part, counted over all turns, and those behind it."""
    for place, turn in enumerate(turns):
        parts = turn.get("parts") or [{}]
        if at >= len(parts):
            at -= len(parts)
            continue
        first, second = [*parts[: at + 1]], [*parts[at + 1 :]]
        text = first[at].get("text")
        if isinstance(text, str) and chars < len(text):
            first[at] = first[at] | {"text": text[:chars]}
            second.insert(0, parts[at] | {"text": text[chars:]})
        behind = [turn | {"parts": second}] if second else []
        return [*turns[:place], turn | {"parts": first}], [*behind, *turns[place + 1 :]]
    return [*turns], []


def without_marks(body: bytes) -> bytes:
    """Return a request that ``laid_out`` made as one for a model or a provider without a cache.

    Anthropic's marks stay: each of its models takes them. A key that a document has itself goes."""
    if b'"prompt_cache_' not in body:
        return body
    fields = _read.decode(body)
    for name in [name for name in fields if name.startswith("prompt_cache_")]:
        del fields[name]
    for field in {_TURNS[CHAT], _TURNS[RESPONSES]} & set(fields):
        turns = _parsed(fields[field])
        for turn in turns if isinstance(turns, list) else ():
            content = turn.get("content") if isinstance(turn, dict) else None
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict):
                    part.pop("prompt_cache_breakpoint", None)
        fields[field] = msgspec.Raw(_write(turns))
    return _write(fields)


def _mark(
    fields: dict[str, msgspec.Raw], endpoint: str, cuts: Sequence[Cut], rules: CacheRules
) -> None:
    pieces = list(_pieces(fields, endpoint))
    by_place: dict[Place, set[int]] = {}
    for cut in cuts[-MARKS_MAX:]:
        if (found := _markable(pieces, cut)) is not None:
            by_place.setdefault(found[0], set()).add(found[1])
    if not by_place:
        return
    parsed = {place.field: _parsed(fields[place.field]) for place in by_place}
    mark = _mark_of(endpoint, rules)
    # from the last one on, so that the indices of those before stay what they are
    for place in sorted(by_place, key=_in_order, reverse=True):
        _mark_place(parsed, endpoint, place, sorted(by_place[place]), mark)
    fields |= {field: msgspec.Raw(_write(value)) for field, value in parsed.items()}
    if endpoint != MESSAGES:
        fields["prompt_cache_options"] = msgspec.Raw(b'{"mode":"explicit"}')


def _markable(pieces: Sequence[Piece], cut: Cut) -> tuple[Place, int] | None:
    """Return the last place up to a cut where a mark can stand, and behind which character."""
    for at in range(min(cut.piece, len(pieces) - 1), -1, -1):
        piece = pieces[at]
        chars = cut.chars if at == cut.piece else len(piece.text)
        if piece.place is None or not chars:
            continue
        if piece.splits or chars == len(piece.text):
            return piece.place, chars
    return None


def _mark_place(
    parsed: dict[str, Any],
    endpoint: str,
    place: Place,
    ends: Sequence[int],
    mark: dict[str, Any],
) -> None:
    if place.field == "tools":
        parsed["tools"][-1] |= mark
        return
    holder, name = (parsed, place.field) if place.turn is None else _turn(parsed, place)
    content = holder[name]
    if not isinstance(content, str):
        assert place.part is not None, "a list of parts has a place for each"
        content[place.part : place.part + 1] = _marked(content[place.part], ends, mark)
        return
    kind = "input_text" if endpoint == RESPONSES else "text"
    parts = _marked({"type": kind, "text": content}, ends, mark)
    is_prompt = endpoint == RESPONSES and place.turn is None
    holder[name] = [{"role": "user", "content": parts}] if is_prompt else parts


def _turn(parsed: dict[str, Any], place: Place) -> tuple[dict[str, Any], str]:
    return parsed[place.field][place.turn], "content"


def _marked(
    part: dict[str, Any], ends: Sequence[int], mark: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a part cut at ``ends``, with a mark on each piece but for the rest."""
    text = part.get("text")
    if not isinstance(text, str):
        return [part | mark]
    starts = (0, *ends)
    pieces = [
        part | {"text": text[start:end]} | mark for start, end in zip(starts, ends, strict=False)
    ]
    return pieces + ([part | {"text": text[ends[-1] :]}] if ends[-1] < len(text) else [])


def _mark_of(endpoint: str, rules: CacheRules) -> dict[str, Any]:
    if endpoint != MESSAGES:
        return {"prompt_cache_breakpoint": {"mode": "explicit"}}
    kept = {"ttl": "1h"} if rules.lifetime_s == HOUR_S else {}
    return {"cache_control": {"type": "ephemeral"} | kept}


def _in_order(place: Place) -> tuple[str, int, int]:
    return place.field, place.turn or 0, place.part or 0

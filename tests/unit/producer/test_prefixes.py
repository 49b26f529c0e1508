"""Shared beginnings of prompts: found in one pass, bounded, and known again in workers."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from penstock_producer.dialects.prompt_caches import laid_out, rules_of
from penstock_producer.planning.prefixes import (
    GROUPS_MAX,
    CachedPrompts,
    Prefixes,
    PrefixFinder,
    cached_tokens,
    kept_groups,
)

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
LUCK = random.Random(7)


def text(words: int) -> str:
    return " ".join(f"word{LUCK.randrange(10_000)}" for _ in range(words))


SYSTEM = text(700)  # some 6,300 characters
MANUALS = [text(700) for _ in range(4)]


def chat(*contents: str, system: str | None = SYSTEM, **more: Any) -> bytes:
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [{"role": "user", "content": content} for content in contents]
    return orjson.dumps({"model": "m", "messages": messages, **more})


def found_in(bodies: list[bytes], *, endpoint: str = CHAT, least: int = 1_024) -> Any:
    finder = PrefixFinder(endpoint)
    for body in bodies:
        finder.add(body)
    return finder.found(least, finder.chars / 4)


def test_the_common_beginning_and_groups_behind_it_are_found() -> None:
    """One system text for all, and behind it a manual for each fourth of the documents."""
    bodies = [chat(f"{MANUALS[at % 4]} Question {at}: {text(40)}") for at in range(40)]
    whole, *groups = sorted(found_in(bodies), key=lambda one: one.depth)
    assert (whole.documents, [one.documents for one in groups]) == (40, [10] * 4)
    # to a block and a character or two, as the end of a manual is none of a block
    assert whole.tokens == pytest.approx(len(SYSTEM) / 4, abs=1)
    for one in groups:
        assert len(MANUALS[0]) / 4 - 100 < one.new_tokens <= max(map(len, MANUALS)) / 4 + 64
    read, written = cached_tokens([whole, *groups])
    assert written == pytest.approx(whole.tokens + sum(one.new_tokens for one in groups), abs=1)
    assert read == pytest.approx(39 * whole.tokens + 9 * (written - whole.tokens), abs=9)


@pytest.mark.parametrize(
    ("bodies", "least"),
    [
        ([chat(text(50), system=text(60)) for _ in range(9)], 64),  # nothing is shared
        ([chat(text(50), system=SYSTEM[:3_000]) for _ in range(9)], 1_024),  # too short
        ([chat(text(50)) for _ in range(2)], 1_024),  # by too few
        ([b'{"messages": 5}', b"[]", b"{", b'{"messages":[null,{"role":1}]}'] * 3, 1),
    ],
)
def test_what_no_cache_would_keep_is_no_group(bodies: list[bytes], least: int) -> None:
    """Short beginnings, two documents alike, and requests that cannot be read."""
    assert found_in(bodies, least=least) == []


def test_memory_is_bounded_and_what_is_shared_often_stays() -> None:
    """Twenty thousand prompts of their own push out none of a group that comes again and again."""
    finder = PrefixFinder(CHAT, most_bytes=100_000)
    for at in range(20_000):
        finder.add(chat(f"{at} {'x' * 300}", system=None))
        if at % 20 == 0:
            finder.add(chat(f"{MANUALS[at // 20 % 4]} {at}", system=None))
        assert finder.held <= 100_000
    groups = finder.found(1_024, finder.chars / 4)
    assert sorted(one.documents for one in groups) == [250] * 4


def test_so_many_groups_are_kept_and_no_more() -> None:
    """Those that save most; and a job keeps each in eight bytes, in base64."""
    finder, start = PrefixFinder(CHAT, most_bytes=64 * 1024 * 1024), "x" * 4_096
    for group in range(GROUPS_MAX + 10):
        for at in range(3):
            finder.add(chat(f"{group:06}{start}{at}", system=None))
    groups = finder.found(1_000, finder.chars / 4)
    assert len(groups) == GROUPS_MAX
    assert len(kept_groups(groups, "m")["groups"]) < 44_000


def test_workers_know_the_groups_by_the_prompts_alone() -> None:
    """The levels of a document are those of its group, and none of a prompt of its own."""
    bodies = [chat(f"{MANUALS[at % 2]} Question {at}") for at in range(8)]
    kept = kept_groups(found_in(bodies), "m")
    known = Prefixes.of(kept["groups"])
    levels = [known.levels(body, CHAT) for body in bodies]
    assert {len(one) for one in levels} == {2}
    assert levels[0][0].name == levels[1][0].name  # the system text
    assert levels[0][1].name == levels[2][1].name != levels[1][1].name
    assert levels[0][0].cut == (0, len(SYSTEM))  # whole, since a message ends there
    assert known.levels(chat("another", system="another"), CHAT) == []
    assert len(known.levels(chat("another"), CHAT)) == 1


def test_a_beginning_ends_between_words_and_alike_in_all_of_its_group() -> None:
    """The text of a document is cut behind a blank, and the parts together are what it was."""
    bodies = [
        orjson.dumps({"messages": [{"role": "user", "content": f"{MANUALS[0]} Question {at}"}]})
        for at in range(5)
    ]
    known = Prefixes.of(kept_groups(found_in(bodies, endpoint=MESSAGES), None)["groups"])
    rules = rules_of("anthropic", "", "claude-sonnet-4-5")
    firsts = set()
    for body in bodies:
        levels = known.levels(body, MESSAGES)
        sent = orjson.loads(laid_out(body, MESSAGES, [levels[0].cut], rules, "k"))
        first, rest = sent["messages"][0]["content"]
        assert first["text"] + rest["text"] == orjson.loads(body)["messages"][0]["content"]
        assert first["text"].endswith(" ")
        firsts.add(first["text"])
    assert len(firsts) == 1
    assert len(firsts.pop()) > len(MANUALS[0]) - 260


def test_a_job_without_groups_uses_no_cache() -> None:
    """Its source has none, or its provider's batches have no cache."""
    assert CachedPrompts.of({}, "openai", "", CHAT, packs=False) is None
    kept = {"prefixes": kept_groups([], "gpt-4o")}
    openai = "https://api.openai.com/v1"
    assert CachedPrompts.of(kept, "openai", openai, CHAT, packs=False) is not None
    assert CachedPrompts.of(kept, "openai", openai, CHAT, packs=True) is None

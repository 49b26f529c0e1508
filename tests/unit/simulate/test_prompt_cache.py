"""The prompt caches of the simulated provider, by its clock and its prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from penstock_simulate.answers.cached_contents import KeptContent
from penstock_simulate.answers.calls import CHAT, GENERATE, MESSAGES
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.provider import Provider

LATENCY_S = 1.0
MANUAL = 8_000  # characters: 2,000 tokens


def provider(**given: Any) -> Provider:
    usual: dict[str, Any] = {
        "latency_ms": LATENCY_S * 1000,
        "latency_sigma": 0.0,
        "usd_per_mtok_in": 1.0,
    }
    return Provider(SimulatorConfig(**{**usual, **given}))


def asked(made: Provider, body: dict[str, Any], at: float, endpoint: str = CHAT) -> dict[str, Any]:
    call = made.open_call(endpoint, orjson.dumps(body), None, None)
    if endpoint == GENERATE:
        call.model = "gemini-2.5-flash"
    reply = made.decide(call, at)
    made.close_call(call, reply, unread=False)
    parsed: dict[str, Any] = orjson.loads(reply.body)
    usage: dict[str, Any] = parsed["usage" if "usage" in parsed else "usageMetadata"]
    return usage


def chat(group: str, at: int, model: str = "gpt-5-mini", **more: Any) -> dict[str, Any]:
    content: Any = f"{group * MANUAL}{at:08}"
    if more.get("prompt_cache_options"):
        first = {
            "type": "text",
            "text": group * MANUAL,
            "prompt_cache_breakpoint": {"mode": "explicit"},
        }
        content = [first, {"type": "text", "text": f"{at:08}"}]
    return {"model": model, "messages": [{"role": "user", "content": content}], **more}


def message(group: str, at: int, ttl: str = "5m") -> dict[str, Any]:
    mark = {"type": "ephemeral", "ttl": ttl}
    system = [{"type": "text", "text": group * MANUAL, "cache_control": mark}]
    said = [{"role": "user", "content": f"{at:08}"}]
    return {"model": "claude", "max_tokens": 1, "messages": said, "system": system}


def cached(usage: dict[str, Any]) -> int:
    details = usage.get("prompt_tokens_details", {})
    return int(details.get("cached_tokens", usage.get("cachedContentTokenCount", 0)))


def test_a_beginning_is_read_once_its_first_answer_has_come() -> None:
    """What arrives before that pays in full; tokens are counted in steps of 128."""
    made = provider()
    assert [cached(asked(made, chat("a", at), 0.5 * at)) for at in range(4)] == [0, 0, 1920, 1920]
    assert cached(asked(made, chat("a", 9, model="gpt-5"), 9)) == 0  # each model has its own
    short = {"model": "gpt-5", "messages": [{"role": "user", "content": "a" * 4_000}]}
    assert [cached(asked(made, short, 20 + 5 * at)) for at in range(2)] == [0, 0]


def test_it_is_kept_since_its_last_use() -> None:
    """For five minutes, or as the flag says."""
    made = provider()
    times = [0, 200, 450, 751.5 + LATENCY_S]
    assert [cached(asked(made, chat("a", 1), at)) > 0 for at in times] == [False, True, True, False]
    brief = provider(prompt_cache_s=10)
    assert [cached(asked(brief, chat("a", 1), at)) > 0 for at in (0, 9, 25)] == [False, True, False]


def test_gemini_reads_from_2048_tokens_on() -> None:
    """As its table says of 2.5."""
    made = provider()

    def content(size: int) -> dict[str, Any]:
        return {"contents": [{"role": "user", "parts": [{"text": "a" * size}]}]}

    for size, reads in ((8_000, False), (9_000, True)):
        asked(made, content(size), 0, GENERATE)
        assert (cached(asked(made, content(size), 5, GENERATE)) > 0) is reads


def test_from_gpt_5_6_on_what_is_marked_is_written_and_read() -> None:
    """Without marks the whole prompt is written each time, at a quarter more, and none is read."""
    made, told = provider(), {"prompt_cache_options": {"mode": "explicit"}}
    plain = [asked(made, chat("a", at, "gpt-5.6"), 5 * at) for at in range(2)]
    assert [one["prompt_tokens_details"]["cache_write_tokens"] for one in plain] == [2002, 2002]
    assert [cached(one) for one in plain] == [0, 0]
    marked = [asked(made, chat("b", at, "gpt-5.6", **told), 5 * at) for at in range(2)]
    assert [cached(one) for one in marked] == [0, 2000]
    assert marked[0]["prompt_tokens_details"]["cache_write_tokens"] == 2000


@pytest.mark.parametrize(("ttl", "written_usd"), [("5m", 1.25), ("1h", 2.0)])
def test_writing_and_reading_cost_what_anthropic_says(ttl: str, written_usd: float) -> None:
    """Of a beginning of 2,000 tokens: written at 1.25 or 2, and read at 0.1."""
    made = provider()
    usages = [asked(made, message("a", at, ttl), 5 * at, MESSAGES) for at in range(11)]
    assert [one["cache_read_input_tokens"] for one in usages] == [0] + [2_000] * 10
    assert usages[0]["cache_creation"] == {
        "ephemeral_5m_input_tokens": 2_000 if ttl == "5m" else 0,
        "ephemeral_1h_input_tokens": 2_000 if ttl == "1h" else 0,
    }
    spent = made.stats(0)["spent_usd"] * 1e6
    assert spent == pytest.approx(2_000 * (written_usd + 10 * 0.1) + 11 * 2)


def spent_on(bodies: Sequence[dict[str, Any]], when: Callable[[int], float]) -> float:
    made = provider()
    for at, body in enumerate(bodies):
        asked(made, body, when(at), MESSAGES)
    return float(made.stats(0)["spent_usd"])


def test_the_wrong_order_costs_measurably_more() -> None:
    """Forty manuals of ten documents each, one request every ten seconds: manual after manual costs
    a quarter of what the order of the file does, where each comes again after more than five
    minutes; and all at once costs as much as that."""
    groups = [chr(ord("A") + at) for at in range(40)]
    scattered = [message(group, at) for at in range(10) for group in groups]
    grouped = [message(group, at) for group in groups for at in range(10)]
    right, wrong = (spent_on(order, lambda at: 10.0 * at) for order in (grouped, scattered))
    assert wrong > 4 * right
    # each writes, as none has been answered
    assert spent_on(grouped, lambda at: 0.0) == pytest.approx(wrong)
    # the first of each alone, the others once it was answered
    assert spent_on(grouped, lambda at: 2.0 * (at % 10 > 0)) == pytest.approx(right)


def test_what_is_kept_without_marks_may_be_missed() -> None:
    """By the share of hits that the flag says; what is marked is read all the same."""
    made = provider(prompt_cache_hits=0.5)
    reads = [cached(asked(made, chat("a", at), 5 * at)) > 0 for at in range(200)]
    assert 70 < sum(reads) < 130
    never = provider(prompt_cache_hits=0.0)
    usages = [asked(never, message("a", at), 5 * at, MESSAGES) for at in range(2)]
    assert usages[1]["cache_read_input_tokens"] > 0


def test_an_explicit_cache_ends_when_its_time_is_up() -> None:
    """Behind it a prompt is read whatever its share of hits; then it is forbidden."""
    made = provider(prompt_cache_hits=0.0)
    body = {"model": "models/gemini-2.5-flash", "contents": [{"parts": [{"text": "a" * MANUAL}]}]}
    kept = made.contents.make(body, 60.0, 0.0)
    assert isinstance(kept, KeptContent)
    ask = {"contents": [{"parts": [{"text": "Why?"}]}], "cachedContent": kept.name}
    assert cached(asked(made, ask, 59.0, GENERATE)) == kept.tokens
    call = made.open_call(GENERATE, orjson.dumps(ask), None, None)
    call.model = "gemini-2.5-flash"
    assert made.decide(call, 61.0).status == 403

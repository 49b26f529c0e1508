"""Service tiers: what a request says to be answered in one, and which jobs may ask."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock_producer import JobSpec, SpecError
from penstock_producer.job.endpoints import CHAT, GENERATE, MESSAGES
from penstock_producer.job.tiers import in_the_standard_tier, in_tier

RESPONSES = "/v1/responses"


@pytest.mark.parametrize(
    ("endpoint", "tier", "field", "named"),
    [
        (CHAT, "flex", "service_tier", "flex"),
        (RESPONSES, "standard", "service_tier", "default"),
        (MESSAGES, "standard", "service_tier", "standard_only"),
        (MESSAGES, "priority", "service_tier", "auto"),
        (GENERATE, "flex", "serviceTier", "flex"),
    ],
)
def test_each_api_has_its_own_words(endpoint: str, tier: str, field: str, named: str) -> None:
    """The rest of the request is what it was, byte for byte: numbers beyond doubles, too."""
    body = b'{"model": "m", "seed": 123456789012345678901234567890, "t": 1.10}'
    asked = in_tier(body, endpoint, tier)
    assert orjson.loads(asked)[field] == named
    assert asked.endswith(body[1:])


@pytest.mark.parametrize("body", [b"{}", b" { } ", b'\n{"a": {"service_tier": "x"}}'])
def test_every_object_can_ask(body: bytes) -> None:
    """An empty one, one with blanks, and one whose inside has the name of the field."""
    assert orjson.loads(in_tier(body, CHAT, "flex")) == {
        "service_tier": "flex",
        **orjson.loads(body),
    }


def test_what_a_line_says_itself_stays() -> None:
    """A tier of its own is not replaced, and not given up where flex is full."""
    body = b'{"service_tier": "priority", "model": "m"}'
    assert in_tier(body, CHAT, "flex") == body
    own = b'{"model": "m", "service_tier": "flex"}'
    assert in_the_standard_tier(own, CHAT) is None
    text = b'{"messages": [{"role": "user", "content": "the \\"service_tier\\" field"}]}'
    assert orjson.loads(in_tier(text, CHAT, "flex"))["service_tier"] == "flex"


@pytest.mark.parametrize("endpoint", [CHAT, GENERATE])
def test_a_document_that_flex_has_no_room_for_is_asked_for_in_standard(endpoint: str) -> None:
    """Only the tier is another; what is not in flex has nothing to fall back to."""
    body = b'{"model":"m","n":1}'
    again = in_the_standard_tier(in_tier(body, endpoint, "flex"), endpoint)
    assert again is not None
    assert again == in_tier(body, endpoint, "standard")
    assert in_the_standard_tier(again, endpoint) is None
    assert in_the_standard_tier(body, endpoint) is None
    assert in_the_standard_tier(body, MESSAGES) is None


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"tier": "cheap"}, "flex"),
        ({"endpoint": "/v1/embeddings", "tier": "flex"}, "have no service tier"),
        ({"endpoint": MESSAGES, "tier": "flex", "params": {"max_tokens": 9}}, "lane=batch"),
        ({"lane": "batch", "tier": "flex"}, "no provider answers in real time in batch"),
        ({"lane": "gpu", "tier": "priority"}, "no provider answers in real time in gpu"),
        ({"tier": "flex", "params": {"service_tier": "flex"}}, "keep one of them"),
    ],
)
def test_a_tier_that_cannot_be_asked_for_is_refused_at_submit(
    asked: dict[str, Any], why: str
) -> None:
    """With what to do in its place."""
    with pytest.raises(SpecError, match=why) as refused:
        JobSpec.model_validate({"prompt": "{text}", "model": "m", **asked})
    assert [problem.pointer for problem in refused.value.problems] == ["/tier"]


@pytest.mark.parametrize(("lane", "tier"), [("api", "flex"), ("batch", None), ("gpu", None)])
def test_only_a_provider_in_real_time_has_tiers(lane: str, tier: str | None) -> None:
    """A job that may go to several lanes asks for it where it is answered in real time."""
    lanes = ["api", "batch", "gpu"]
    spec = JobSpec.model_validate(
        {"prompt": "{text}", "model": "m", "tier": "flex", "lane": "auto", "lanes": lanes}
    )
    assert spec.tier_in(lane) == tier

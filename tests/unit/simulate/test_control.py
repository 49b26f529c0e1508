"""What can be changed while the simulated provider runs, and the refusals that can be asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_ratelimit.provider.refusals import Signal, classify
from penstock_simulate.answers.calls import CHAT
from penstock_simulate.answers.refusals import BY_NAME
from penstock_simulate.choices import BadSetting
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.provider import Provider
from penstock_simulate.reply import Reply

BODY = json.dumps(
    {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Read it. " * 40}]}
).encode()


def ask(
    provider: Provider, now: float = 0.0, tag: str = "job:doc", key: str | None = None
) -> Reply:
    call = provider.open_call(CHAT, BODY, tag, key)
    reply = provider.decide(call, now)
    provider.close_call(call, reply, unread=False)
    return reply


def change(provider: Provider, now: float = 0.0, **settings: Any) -> None:
    provider.control(json.dumps(settings).encode(), now)


def test_a_limit_can_be_lowered_while_running() -> None:
    """The next answer shows the new limit and keeps to it; what is used stays used."""
    provider = Provider(SimulatorConfig(rpm=600, depth_s=10))
    assert ask(provider).headers["x-ratelimit-limit-requests"] == "600"
    change(provider, rpm=60)
    after = ask(provider)
    assert after.headers["x-ratelimit-limit-requests"] == "60"
    assert after.headers["x-ratelimit-remaining-requests"] == "59"
    assert provider.controls()["rpm"] == 60


def test_an_outage_can_begin_and_end() -> None:
    """Fault rates follow, so a test decides when the servers fall and when they stand again."""
    provider = Provider(SimulatorConfig())
    change(provider, overload_rate=1)
    assert ask(provider).status == 503
    change(provider, overload_rate=0)
    assert ask(provider).good


@pytest.mark.parametrize("kind", BY_NAME)
def test_every_refusal_can_be_asked_for(kind: str) -> None:
    """So many calls as asked for get it, it is counted by its name, and then all is well again."""
    provider = Provider(SimulatorConfig(retry_after_s=7))
    change(provider, refuse={"kind": kind, "calls": 2})
    replies = [ask(provider) for _ in range(3)]
    assert [reply.good for reply in replies] == [False, False, True]
    waits = {
        "rate_limit_exceeded",
        "slow_down",
        "server_is_overloaded",
        "overloaded_error",
        "resource_unavailable",
    }
    assert replies[0].headers.get("retry-after") == ("7" if kind in waits else None)
    assert provider.stats(0.0)["refused"] == ({} if kind == "server_error" else {kind: 2})


@pytest.mark.parametrize("like", ["openai", "anthropic"])
@pytest.mark.parametrize("kind", BY_NAME)
def test_a_refusal_means_to_our_pacing_what_its_name_says(kind: str, like: str) -> None:
    """The answer by name gives the signal by name, in OpenAI's form and in Anthropic's (which has
    no word for a ramp)."""
    provider = Provider(SimulatorConfig(like=like))
    change(provider, refuse={"kind": kind})
    reply = ask(provider)
    refusal = classify(reply.status, reply.headers, reply.body, 0.0)
    assert refusal is not None
    expected = {
        "rate_limit_exceeded": Signal.THROTTLED,
        "slow_down": Signal.RAMP if like == "openai" else Signal.THROTTLED,
        "invalid_api_key": Signal.UNAUTHORIZED,
        "permission_denied": Signal.REFUSED,
        "server_is_overloaded": Signal.OVERLOADED,
        "overloaded_error": Signal.OVERLOADED,
        "resource_unavailable": Signal.OVERLOADED,
        "server_error": Signal.TRANSIENT,
        "aborted": Signal.TRANSIENT,
        "context_length_exceeded": Signal.REFUSED,
        "model_not_found": Signal.REFUSED,
    }.get(kind, Signal.OUT_OF_MONEY)
    assert refusal.signal is expected


def test_a_refusal_without_a_number_lasts_until_it_is_ended() -> None:
    """Null ends it; other changes leave it alone."""
    provider = Provider(SimulatorConfig())
    change(provider, refuse={"kind": "invalid_api_key"})
    change(provider, rpm=600)
    assert [ask(provider).status for _ in range(5)] == [401] * 5
    change(provider, refuse=None)
    assert ask(provider).good


def test_money_can_be_put_in_again() -> None:
    """An account that is empty by dollars works again with more of them."""
    provider = Provider(SimulatorConfig(credit_usd=0.001, usd_per_mtok_in=5, usd_per_mtok_out=20))
    good = [ask(provider).good for _ in range(5)]
    assert good == [True, True, False, False, False]
    assert provider.stats(0.0)["spent_usd"] == pytest.approx(2 * (90 * 5 + 12 * 20) / 1e6, rel=0.3)
    change(provider, credit_usd=1)
    assert ask(provider).good


def test_the_key_can_be_changed_and_is_not_shown() -> None:
    """A key that is taken back gets 401 from then on."""
    provider = Provider(SimulatorConfig(api_key="old"))
    assert ask(provider, key="Bearer old").good
    change(provider, api_key="new")
    assert ask(provider, key="Bearer old").status == 401
    assert "new" not in json.dumps(provider.controls())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "the body is not JSON"),
        (b"[]", "the body must be a JSON object"),
        (b'{"port": 80}', "'port' cannot be changed; these can: refuse, "),
        (b'{"rpm": 0}', "--rpm: 0 cannot be used; give a number above 0"),
        (b'{"rpm": "7"}', "--rpm: '7' cannot be used"),
        (b'{"ramp_s": null}', "--ramp-s: None cannot be used; give a value"),
        (b'{"api_key": 7}', "--api-key: 7 cannot be used; give a text or null"),
        (b'{"charge_failed": 1}', "--charge-failed: 1 cannot be used; give true or false"),
        (b'{"refuse": "slow_down"}', 'give {"kind": "slow_down", "calls": 3} or null'),
        (
            b'{"refuse": {"kind": "rude"}}',
            "'rude' cannot be used; give rate_limit_exceeded, slow_down",
        ),
        (
            b'{"refuse": {"kind": "slow_down", "calls": 0}}',
            "0 cannot be used; give a whole number from 1",
        ),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(body: bytes, told: str) -> None:
    """The message says what is wrong, and the settings stay."""
    provider = Provider(SimulatorConfig(rpm=600))
    before = provider.controls()
    with pytest.raises(BadSetting) as caught:
        provider.control(body, 0.0)
    assert told in str(caught.value)
    assert provider.controls() == before

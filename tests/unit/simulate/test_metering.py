"""How the simulated provider meters like the real ones: what is charged when, and how each of them
refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from penstock_simulate.answers.calls import CHAT
from penstock_simulate.choices import BadSetting
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.provider import Provider
from penstock_simulate.reply import Manner, Reply

INPUT, MOST = 100, 500  # tokens of the request below, and its max_tokens
QUESTION = "Read. " + "x" * (4 * INPUT - 6)
BODY = json.dumps(
    {"model": "m", "max_tokens": MOST, "messages": [{"role": "user", "content": QUESTION}]}
).encode()
SECOND: dict[str, Any] = {"latency_ms": 1_000, "latency_sigma": 0}  # every answer takes a second


def start(
    provider: Provider, now: float, number: int = 0, more: Mapping[str, Any] | None = None
) -> Reply:
    """A call that is still in flight."""
    body = BODY if more is None else json.dumps(json.loads(BODY) | more).encode()
    return provider.decide(provider.open_call(CHAT, body, f"job:{number}", None), now)


def ask(provider: Provider, now: float = 0.0, number: int = 0) -> Reply:
    call = provider.open_call(CHAT, BODY, f"job:{number}", None)
    reply = provider.decide(call, now)
    provider.close_call(call, reply, unread=False)
    return reply


def charged(provider: Provider, now: float, dimension: str = "tokens") -> float:
    used: float = provider.stats(now)["limits"][dimension]["accepted"]
    return used


@pytest.fixture(scope="module")
def output() -> int:
    """Tokens of the answer, fewer than are reserved for it."""
    usage = json.loads(ask(Provider(SimulatorConfig())).body)["usage"]
    assert usage["prompt_tokens"] == INPUT
    assert 0 < usage["completion_tokens"] < MOST
    tokens: int = usage["completion_tokens"]
    return tokens


@pytest.mark.parametrize("mode", ["reserve", "actual", "settle", "output-as-produced", "input"])
def test_each_mode_charges_when_it_says(mode: str, output: int) -> None:
    """At admission, in the middle of the answer, and after it."""
    provider = Provider(SimulatorConfig(tpm=1e6, charge=mode, **SECOND))
    assert start(provider, 10.0).good
    expected = {
        "reserve": (INPUT + MOST, INPUT + MOST, INPUT + MOST),
        "actual": (INPUT + output, INPUT + output, INPUT + output),
        "settle": (INPUT + MOST, INPUT + MOST, INPUT + output),
        "output-as-produced": (INPUT, INPUT + output / 2, INPUT + output),
        "input": (INPUT, INPUT, INPUT),
    }[mode]
    assert tuple(charged(provider, at) for at in (10.0, 10.5, 11.0)) == pytest.approx(expected)


@pytest.mark.parametrize("mode", ["reserve", "actual", "settle", "output-as-produced"])
def test_split_limits_are_charged_for_their_part(mode: str, output: int) -> None:
    """Input and output add up to what the combined limit is charged."""
    provider = Provider(SimulatorConfig(itpm=1e6, otpm=1e6, charge=mode, **SECOND))
    assert start(provider, 10.0).good
    assert charged(provider, 12.0, "input_tokens") == INPUT
    assert charged(provider, 12.0, "output_tokens") == pytest.approx(
        MOST if mode == "reserve" else output
    )


@pytest.mark.parametrize("mode", ["reserve", "settle"])
def test_failed_calls_are_charged_or_not(mode: str) -> None:
    """A 500 costs the request and, reserved for good, its tokens; where failures are free it costs
    nothing."""
    for charge_failed, requests in ((True, 1), (False, 0)):
        provider = Provider(
            SimulatorConfig(
                rpm=600, tpm=1e6, charge=mode, charge_failed=charge_failed, error_rate=1, **SECOND
            )
        )
        assert ask(provider, 10.0).status == 500
        assert charged(provider, 20.0, "requests") == requests
        tokens = {"reserve": INPUT + MOST, "settle": INPUT}[mode]
        assert charged(provider, 20.0) == requests * tokens


def test_bedrock_counts_output_several_times_once_settled(output: int) -> None:
    """Reserved once, settled with the burndown; where output has a limit of its own it counts
    once."""
    provider = Provider(SimulatorConfig(like="bedrock", tpm=1e6, otpm=1e6, **SECOND))
    start(provider, 10.0)
    assert (charged(provider, 10.0), charged(provider, 11.0)) == (INPUT + MOST, INPUT + 5 * output)
    assert charged(provider, 11.0, "output_tokens") == output


def test_a_request_without_max_tokens_reserves_what_was_set_for_it() -> None:
    """The model's maximum, as Bedrock does it, or what the flag says."""
    unset = json.dumps({"model": "m", "messages": [{"role": "user", "content": QUESTION}]}).encode()
    for config, reserved in (
        ({}, 256),
        ({"like": "bedrock"}, 64_000),
        ({"unset_max_tokens": 9}, 9),
    ):
        made: dict[str, Any] = {"tpm": 1e9, **config}
        provider = Provider(SimulatorConfig(**made))
        provider.decide(provider.open_call(CHAT, unset, "job:a", None), 0.0)
        assert charged(provider, 0.0) == INPUT + reserved


def test_a_hanging_call_keeps_its_reservation_until_it_ends() -> None:
    """Nothing comes back while the provider still works on it."""
    provider = Provider(
        SimulatorConfig(tpm=1e6, charge="settle", hang_rate=1, hang_s=100, charge_failed=False)
    )
    assert start(provider, 0.0).manner is Manner.HUNG
    assert (charged(provider, 99.0), charged(provider, 100.0)) == (INPUT + MOST, INPUT)


def test_settling_makes_room_that_reserving_does_not(output: int) -> None:
    """One minute's budget of 20 reservations: settled, far more calls fit than 20; reserved for
    good, exactly 20."""
    fits = {}
    for mode in ("reserve", "settle"):
        provider = Provider(
            SimulatorConfig(tpm=20 * (INPUT + MOST), charge=mode, window="minute", **SECOND)
        )
        fits[mode] = sum(ask(provider, second * 1.001, second).good for second in range(59))
    assert fits["reserve"] == 20
    assert fits["settle"] == 59


def test_the_queue_delays_the_output_with_the_answer() -> None:
    """A call that waits for a slot produces nothing while it waits."""
    provider = Provider(
        SimulatorConfig(
            otpm=1e6, charge="output-as-produced", crowded="queue", max_concurrency=1, **SECOND
        )
    )
    delays = [start(provider, 0.0, number).delay_s for number in range(3)]
    assert delays == [1, 2, 3]
    third = charged(provider, 1.0, "output_tokens")
    assert charged(provider, 3.0, "output_tokens") == pytest.approx(3 * third)
    assert charged(provider, 9.0, "output_tokens") == pytest.approx(3 * third)


def test_vllm_refuses_nobody_and_shows_its_queue() -> None:
    """No 429 however many come; running and waiting are in the metrics."""
    provider = Provider(SimulatorConfig(like="vllm", max_concurrency=8, **SECOND))
    assert all(start(provider, 0.0, number).good for number in range(40))
    text = provider.metrics(1.5)
    assert text is not None
    lines = text.splitlines()
    shown = [line.rpartition(" ")[2] for line in lines if "num_requests" in line and "{" in line]
    assert shown == ["8.0", "24.0"]


def test_vllms_histograms_count_first_tokens_as_they_come_and_queues_as_calls_end() -> None:
    """Of two calls for one place, the second has its first token after the whole of the first."""
    provider = Provider(
        SimulatorConfig(
            like="vllm",
            max_concurrency=1,
            latency_ms=500,
            latency_sigma=0,
            latency_ms_per_token=0.001,
        )
    )
    for number in range(2):
        start(provider, 0.0, number)

    counts = []
    for now in (0.4, 0.6, 1.1):
        text = provider.metrics(now)
        assert text is not None
        page = dict(line.rsplit(" ", 1) for line in text.splitlines())
        shown = {
            name.partition("{")[0]: float(value)
            for name, value in page.items()
            if name[:1] != "#" and "bucket" not in name
        }
        counts.append(
            tuple(
                shown[f"vllm:{name}_seconds_count"]
                for name in ("time_to_first_token", "request_queue_time")
            )
        )
    assert counts == [(0, 0), (1, 1), (2, 2)]
    assert shown["vllm:time_to_first_token_seconds_sum"] == pytest.approx(1.5, abs=0.01)
    assert shown["vllm:request_queue_time_seconds_sum"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("config", "status", "code"),
    [
        ({}, 429, "rate_limit_exceeded"),
        ({"crowded": "503"}, 503, "server_is_overloaded"),
        ({"like": "bedrock"}, 503, "server_is_overloaded"),
        ({"like": "anthropic"}, 529, "server_is_overloaded"),
    ],
)
def test_more_calls_than_the_capacity_are_refused(
    config: dict[str, Any], status: int, code: str
) -> None:
    """By quota or by capacity, as the provider does it."""
    provider = Provider(SimulatorConfig(max_concurrency=2, **config))
    assert [start(provider, 0.0, number).status for number in range(3)] == [200, 200, status]
    stats = provider.stats(0.0)
    assert (stats["over_limit"], stats["refused"]) == ({"concurrency": 1}, {code: 1})


def test_traffic_that_grows_too_fast_gets_slow_down() -> None:
    """A jump inside the limits is refused with a wait, is not charged, and shows in the
    accounts."""
    provider = Provider(SimulatorConfig(rpm=60_000, ramp_percent=100, ramp_s=10, ramp_free_rpm=60))
    replies = [ask(provider, 0.0, number) for number in range(5)]
    assert [reply.status for reply in replies] == [200, 200, 429, 429, 429]
    assert json.loads(replies[2].body)["error"]["code"] == "slow_down"
    assert replies[2].headers["retry-after-ms"] == "1000"
    stats = provider.stats(0.0)
    assert stats["refused"] == {"slow_down": 3}
    assert stats["limits"]["requests"]["accepted"] == 2


def test_anthropics_errors_have_its_form() -> None:
    """Its error types, a wait in seconds only, and the spend limit in `details` without a wait."""
    provider = Provider(SimulatorConfig(like="anthropic", rpm=1, credit_calls=3, api_key="k"))
    replies = [
        provider.decide(provider.open_call(CHAT, BODY, "job:a", key), 0.0)
        for key in ("x", "Bearer k", "Bearer k", "Bearer k")
    ]
    errors = [json.loads(reply.body).get("error", {}) for reply in replies]
    assert [error.get("type") for error in errors] == [
        "authentication_error",
        None,
        "rate_limit_error",
        "rate_limit_error",
    ]
    assert replies[2].headers["retry-after"] == "60"
    assert "retry-after-ms" not in replies[2].headers
    assert errors[3]["details"] == {"error_code": "enforced_spend_limit_reached"}
    assert "retry-after" not in replies[3].headers


def test_bedrock_throttles_without_a_word() -> None:
    """429 with neither limits nor a wait."""
    provider = Provider(SimulatorConfig(like="bedrock", rpm=1))
    refused = [ask(provider) for _ in range(2)][1]
    assert refused.status == 429
    assert set(refused.headers) == {"Content-Type", "x-request-id"}


@pytest.mark.parametrize(
    "like", ["openai", "azure", "anthropic", "bedrock", "gemini", "groq", "together"]
)
def test_no_preset_accepts_more_than_its_rate(like: str) -> None:
    """Hammered for two minutes, what is accepted stays within rate x time plus what it holds when
    full."""
    provider = Provider(
        SimulatorConfig(like=like, rpm=600, tpm=600_000, charge_failed=False, latency_ms=100)
    )
    good = sum(ask(provider, tick / 20, tick).good for tick in range(2_400))
    depth_s = 60  # none holds more than a minute
    assert 0.9 * 10 * 120 <= good <= 10 * (120 + depth_s) + 1
    assert provider.stats(120.0)["limits"]["requests"]["accepted"] == good


def test_a_queue_by_priority_lets_lower_ones_pass() -> None:
    """One place, and half a second for each: a call without a priority that comes last goes before
    those that wait with ten, none that runs is interrupted, and equal ones keep their order. The
    histograms have the times that came of it."""
    config = SimulatorConfig(
        like="vllm",
        max_concurrency=1,
        scheduling_policy="priority",
        latency_ms=500,
        latency_sigma=0,
    )
    provider = Provider(config)
    first, second, third = (start(provider, at / 10, at, {"priority": 10}) for at in range(3))
    urgent = start(provider, 0.4, 3)
    waits = [provider.wait_s(reply, 0.4) for reply in (first, urgent, second, third)]
    assert waits == pytest.approx([0.0, 0.1, 0.6, 1.1])
    assert provider.wait_s(urgent, 0.5) == 0.0
    assert provider.wait_s(second, 0.7) == pytest.approx(0.3)
    assert "num_requests_waiting" in (text := provider.metrics(0.7) or "")
    assert 'vllm:num_requests_waiting{engine="0",model_name="sim-small"} 2.0' in text
    for reply in (second, third):
        assert provider.wait_s(reply, 1.5) == 0.0
    text = provider.metrics(9.0) or ""
    sums = [line for line in text.splitlines() if line.startswith("vllm:request_queue_time_s")]
    assert float(sums[-2].rpartition(" ")[2]) == pytest.approx(0.0 + 0.1 + 0.9 + 1.3)


def test_a_queue_by_priority_needs_a_queue() -> None:
    """Elsewhere the flag is refused with what gives one."""
    with pytest.raises(BadSetting, match="--like vllm, or --crowded queue"):
        SimulatorConfig(scheduling_policy="priority")

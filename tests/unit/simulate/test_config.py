"""The options of `penstock simulate`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from penstock_simulate.choices import PRESETS, BadSetting
from penstock_simulate.command import simulate
from penstock_simulate.config import SimulatorConfig


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"error_rate": 1.5}, "--error-rate: 1.5 cannot be used; give a share between 0 and 1"),
        ({"poison_rate": -0.1}, "--poison-rate: -0.1 cannot be used"),
        ({"error_rate": 0.6, "drop_rate": 0.6}, "--error-rate 0.6 + --drop-rate 0.6 add up to 1.2"),
        ({"rpm": 0}, "--rpm: 0 cannot be used; give a number above 0"),
        ({"tpm": float("nan")}, "--tpm: nan cannot be used"),
        ({"latency_ms": -1}, "--latency-ms: -1 cannot be used; give 0 or more"),
        ({"depth_s": float("inf")}, "--depth-s: inf cannot be used"),
        ({"window": "hour"}, "--window: 'hour' cannot be used; give bucket, 10s or minute"),
        (
            {"charge": "never"},
            "--charge: 'never' cannot be used; give reserve, actual, settle, output-as-produced or "
            "input",
        ),
        ({"like": "acme"}, "--like: 'acme' cannot be used; give openai, azure, anthropic"),
        (
            {"headers": "x"},
            "--headers: 'x' cannot be used; give openai, anthropic, together, azure, groq or none",
        ),
        ({"crowded": "drop"}, "--crowded: 'drop' cannot be used; give 429, 503 or queue"),
        ({"crowded": "queue"}, "--crowded queue has nothing to wait for; give --max-concurrency"),
        (
            {"foreign_share": 1},
            "--foreign-share: 1 cannot be used; give a share from 0 to less than 1",
        ),
        ({"itpm": -5}, "--itpm: -5 cannot be used; give a number above 0"),
        ({"ramp_percent": 0}, "--ramp-percent: 0 cannot be used; give a number above 0"),
        (
            {"credit_usd": 2},
            "--credit-usd 2 is never spent without a price; give --usd-per-mtok-in",
        ),
        ({"rpm": "many"}, "--rpm: 'many' cannot be used; give a number above 0"),
        ({"max_concurrency": 0}, "--max-concurrency: 0 cannot be used; give a whole number from 1"),
        ({"port": 70_000}, "--port: 70000 cannot be used; give 0 (any free port) to 65535"),
    ],
)
def test_a_bad_value_is_refused_by_its_flag(given: dict[str, Any], told: str) -> None:
    """The message names the flag, the value seen and what to give."""
    with pytest.raises(BadSetting) as caught:
        SimulatorConfig(**given)
    assert told in str(caught.value)


def test_every_field_is_a_flag_with_the_same_default() -> None:
    """Flags and configuration cannot drift apart; only the port differs, so that the address can be
    guessed."""
    flags = {name: flag.default for name, flag in inspect.signature(simulate).parameters.items()}
    defaults = {field.name: field.default for field in fields(SimulatorConfig)}
    assert flags.pop("port") == 8399
    assert defaults.pop("port") == 0
    assert flags == defaults


def test_a_preset_decides_what_is_not_given() -> None:
    """`like` sets how a provider meters; a flag beside it goes first, and one window for all is
    given by one flag."""
    bedrock = SimulatorConfig(like="bedrock", depth_s=5).metering
    assert (bedrock.charge, bedrock.headers, bedrock.depth_s) == ("settle", "none", 5)
    assert SimulatorConfig().metering.depth_s == 10
    azure = SimulatorConfig(like="azure").metering
    assert (azure.window, azure.tokens_window) == ("10s", "minute")
    assert SimulatorConfig(like="azure", window="bucket").metering.tokens_window == "bucket"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_used(name: str) -> None:
    """A preset alone is a configuration that passes its own checks."""
    metering = SimulatorConfig(like=name).metering
    told = {field: getattr(metering, field) for field in metering._fields}
    assert SimulatorConfig(**told).metering == metering

"""What may be changed while the provider runs: settings by name, and refusals on demand.

`POST /control` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import orjson

from penstock_simulate import checks
from penstock_simulate.answers.refusals import BY_NAME
from penstock_simulate.checks import BadSetting
from penstock_simulate.config import SimulatorConfig

REFUSE = "refuse"
# Where it listens and what its meters are made of stay; what they allow may change.
FIXED = frozenset(
    {
        "host",
        "port",
        "call_log",
        "seed",
        "like",
        "window",
        "tokens_window",
        "depth_s",
        "charge",
        "certificate",
        "authority",
    }
)
CHANGEABLE = [field.name for field in fields(SimulatorConfig) if field.name not in FIXED]


@dataclass(slots=True)
class Demand:
    """Refuse in this way: so many calls, or every one until something else is asked for."""

    kind: str
    calls: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A request to the control endpoint, read and checked."""

    config: SimulatorConfig
    demand: Demand | None  # what is refused from now on


def read_change(raw: bytes, config: SimulatorConfig, demand: Demand | None) -> Change:
    """Read settings as in SimulatorConfig, and `refuse`; what is not named stays.

    Raises BadSetting and changes nothing."""
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadSetting(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadSetting('the body must be a JSON object such as {"rpm": 600}')
    if REFUSE in given:
        demand = _demand(given.pop(REFUSE))
    unknown = [name for name in given if name not in CHANGEABLE]
    if unknown:
        raise BadSetting(
            f"{unknown[0]!r} cannot be changed; these can: {', '.join([REFUSE, *CHANGEABLE])}"
        )
    _types_fit(given)
    return Change(replace(config, **given), demand)


def shown(config: SimulatorConfig, demand: Demand | None) -> dict[str, Any]:
    """Return what is in force, under the names that `POST /control` takes; but for the key."""
    shown = {name: getattr(config, name) for name in CHANGEABLE if name != "api_key"}
    shown |= {
        name: getattr(config.metering, name) for name in config.metering._fields if name in shown
    }
    return shown | {REFUSE: {"kind": demand.kind, "calls": demand.calls} if demand else None}


def _demand(given: object) -> Demand | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise BadSetting(
            f'{REFUSE}: {given!r} cannot be used; give {{"kind": "slow_down", "calls": 3}} or null'
        )
    kind, calls = given.get("kind"), given.get("calls")
    checks.one_of("refuse.kind", kind, tuple(BY_NAME))
    if calls is not None:
        checks.whole("refuse.calls", calls, 1)
    return Demand(str(kind), calls)


def _types_fit(given: Mapping[str, Any]) -> None:
    """Check what the configuration does not, since flags cannot get it wrong."""
    for name, kind, fix in (
        ("charge_failed", bool, "true or false"),
        ("api_key", str | None, "a text or null"),
        ("hostile", str | None, "names with commas between, or null"),
    ):
        if name in given and not isinstance(given[name], kind):
            raise checks.unusable(name, given[name], f"give {fix}")
    for name in given:
        if given[name] is None and SimulatorConfig.__dataclass_fields__[name].default is not None:
            raise checks.unusable(name, None, "give a value")

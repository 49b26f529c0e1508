"""The chart, rendered once per session for each set of values."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from chart import helm_library
from chart.helm_library import Release, Values

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "penstock"
EXAMPLES = sorted(path.stem for path in (CHART / "examples").glob("*.yaml"))
FLEETS = [name for name in EXAMPLES if name != "job"]  # that have pools and stores

Render = Callable[..., Release]


def example(name: str) -> Values:
    """An example's values; no cluster is there whose APIs could be looked up."""
    values: Values = yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text())
    return overlay(values, {"checkClusterApis": False})


def overlay(values: Values, over: Values) -> Values:
    """``over`` laid over ``values`` as Helm lays a second values file over the first."""
    merged = copy.deepcopy(values)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = overlay(merged[key], value)
        else:
            merged[key] = value
    return merged


_rendered: dict[str, Release] = {}


@pytest.fixture(scope="session")
def render() -> Render:
    """``render("eks", {...})``: an example with changes. Raises Refused."""

    def of(name: str, changes: Values | None = None, chart: Path = CHART) -> Release:
        values = overlay(example(name), changes or {})
        key = f"{chart} {json.dumps(values, sort_keys=True)}"
        if key not in _rendered:
            _rendered[key] = helm_library.render(chart, values)
        return _rendered[key]

    return of

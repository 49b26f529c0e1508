"""What a plan takes for granted: each figure with its unit and where it comes from, measured
(`measured.toml`) or given."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

__all__ = ["Figure", "measured"]

_ALL: Final = "lane"


class Figure(NamedTuple):
    """One assumption."""

    name: str
    value: float
    unit: str
    source: str


def measured(lane: str) -> Mapping[str, Figure]:
    """The figures that come with this release, by name: those of a lane, and those that hold for
    all."""
    raw = _table()
    where = raw["machine"]
    return {
        row["name"]: Figure(
            row["name"],
            float(row["value"]),
            row["unit"],
            f"{row['source']}; measured on {where['date']}, {where['machine']}",
        )
        for row in raw["figures"]
        if row.get(_ALL, lane) == lane
    }


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(
        files("penstock_producer.planning").joinpath("measured.toml").read_text("utf-8")
    )

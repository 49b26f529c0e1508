"""Checks of single settings; each names the flag, the value seen and what to give."""

from __future__ import annotations

import math
from collections.abc import Sequence


class BadSetting(ValueError):
    """A flag or a setting cannot be used; the message names it, the value seen and what to give."""

    exit_status = 2  # bad usage, as everywhere in the command line


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def unusable(name: str, value: object, fix: str) -> BadSetting:
    return BadSetting(f"{flag(name)}: {value!r} cannot be used; {fix}")


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        listed = ", ".join(allowed[:-1])
        raise unusable(
            name, value, f"give {listed} or {allowed[-1]}" if listed else f"give {allowed[-1]}"
        )


def figure(name: str, value: object, *, positive: bool) -> None:
    fix = "give a number above 0" if positive else "give 0 or more"
    if not _number(value) or value < 0 or (positive and value == 0):  # type: ignore[operator]  # a number, as checked
        raise unusable(name, value, fix)


def whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise unusable(name, value, f"give a whole number from {least}")


def share(name: str, value: object, *, below_1: bool = False) -> None:
    if not _number(value) or not 0 <= value <= 1 or (below_1 and value == 1):  # type: ignore[operator]  # as above
        fix = (
            "give a share from 0 to less than 1, such as 0.3"
            if below_1
            else "give a share between 0 and 1, such as 0.05"
        )
        raise unusable(name, value, fix)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

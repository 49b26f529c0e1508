"""What the terminal shows."""

from __future__ import annotations

import pytest

from penstock_producer.reporting.text import duration, one_line, percent, rate, safe, usd


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("title\x07\x9b2J", "title\\x07\\x9b2J"),
        ("over\u202ewrite", "over\\u202ewrite"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("carriage\rreturn", "carriage\\x0dreturn"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("Grüße, 世界 🙂", "Grüße, 世界 🙂"),
    ],
)
def test_foreign_text_cannot_steer_the_terminal(foreign: str, shown: str) -> None:
    """Control characters, bidirectional overrides and lone surrogates are shown, never sent."""
    assert safe(foreign) == shown


def test_one_line_is_one_bounded_line() -> None:
    """A provider's page-long HTML error takes one line of the table."""
    assert one_line("<html>\n  502   Bad\tGateway", width=12) == "<html> 502 …"


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 0, "0 %"),
        (2000, 2000, "100 %"),
        (999_999, 1_000_000, "99.9 %"),
        (1, 1_000_000, "<0.1 %"),
        (1, 8, "12.5 %"),
    ],
)
def test_percent_never_rounds_to_all_or_nothing(part: int, whole: int, shown: str) -> None:
    """100 % means all of them and 0 % means none, whatever rounding would say."""
    assert percent(part, whole) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.42, "0.4 s"),
        (59.4, "59 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (273_600, "3 d 04 h"),
    ],
)
def test_durations_read_at_a_glance(seconds: float, shown: str) -> None:
    """A duration has at most two units."""
    assert duration(seconds) == shown


def test_money_and_rates_keep_the_digits_that_matter() -> None:
    """Small costs keep four decimals, large ones two."""
    assert (usd(0.0123), usd(0), usd(1234.5), usd(0.00004)) == (
        "$0.0123",
        "$0.00",
        "$1,234.50",
        "<$0.0001",
    )
    assert (rate(3.21), rate(1234.5)) == ("3.2/s", "1,234/s")

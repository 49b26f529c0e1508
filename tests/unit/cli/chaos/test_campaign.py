"""What a seed of `penstock chaos` gives, and what its table shows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import islice

from penstock_cli.chaos.campaign import Campaign, chosen, plan
from penstock_cli.chaos.play import Verdict
from penstock_cli.chaos.stage import LANES
from penstock_cli.chaos.table import FAULTS


def names(seed: int, number: int, *, of: str | None = None) -> list[tuple[str, int]]:
    return [(stroke.name, stroke.seed) for stroke in islice(plan(chosen(of, "api"), seed), number)]


def test_a_seed_is_a_plan() -> None:
    """The same seed gives the same faults in the same order with the same luck; another does not."""
    assert names(7, 200) == names(7, 200)
    assert names(7, 200) != names(8, 200)


def test_rows_name_lanes_that_there_are() -> None:
    """A row of a lane that chaos does not play in would never be tried."""
    assert {lane for fault in FAULTS for lane in fault.lanes} == set(LANES)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_wrong_clock_is_wrong_from_the_start() -> None:
    """What a process imports afterwards reads the same wrong time."""
    look = (
        "import sys, time; from penstock_cli.chaos import wrong_clock as clock\n"
        "try: clock.main()\n"
        "except SystemExit: pass\n"
        "from logging import LogRecord; now = time.clock_gettime(time.CLOCK_REALTIME)\n"
        "record = LogRecord('', 0, '', 0, '', None, None)\n"
        "print([round((at - now) / 60) for at in (time.time(), time.time_ns() / 1e9, record.created)])"
    )
    words = [sys.executable, "-c", look, "-3600", "--version"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[-60, -60, -60]"


def test_each_fault_comes_alone_first_and_then_in_pairs() -> None:
    """No fault is left out of a turn, and none that waits for a person is in a pair."""
    faults = chosen(None, "api")
    strokes = list(islice(plan(faults, 1), 3 * len(faults)))
    assert Counter(stroke.faults for stroke in strokes[: len(faults)]) == Counter(
        (fault,) for fault in faults
    )
    pairs = [stroke.faults for stroke in strokes[len(faults) :]]
    assert all(one.group != other.group for one, other in pairs)
    assert all(fault.waits_for is None for pair in pairs for fault in pair)


def test_a_fault_alone_has_the_luck_that_it_had_among_others() -> None:
    """What broke a promise can be run again by its name and the seed."""
    assert names(7, 1, of="kill")[0] in names(7, len(FAULTS))


def test_the_table_has_what_was_not_tried() -> None:
    """A fault without a row would look like one that held."""
    verdict = Verdict(
        ("kill",), 1, "killed api-1", 0.5, 2.0, Counter({"200": 5}), 1, 8, 50, 40, 0, ("5 lost",)
    )
    campaign = Campaign(1, "api", [verdict], {"full-disk": "no right to mount"})
    assert campaign.rows() == [
        ("kill", "1", "0.5 s", "1 of 8", "10", "BROKEN", "killed api-1"),
        ("full-disk", "0", "", "", "", "not tried", "no right to mount"),
    ]
    assert json.loads(campaign.as_json())["holds"] is False

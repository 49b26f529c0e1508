"""`penstock run` of a job that changes its lane, from the outside."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from machine import RUN_TIMEOUT_S, Machine, Simulator, eventually, simulator

PRICES = ("--usd-per-mtok-in", "100", "--usd-per-mtok-out", "200")
SETTINGS = """
[lanes]
moving_s = 0.5

[batch]
poll_first_s = 0.1
poll_cap_s = 0.2
"""


@pytest.mark.long
def test_what_a_batch_answers_after_the_end_is_read_by_the_same_command(tmp_path: Path) -> None:
    """A job that left its batch ends without it.

    The run says that answers are left at the provider which may be paid for, the same command reads
    and counts them and asks for nothing, and given once more it starts nothing."""
    machine = Machine(tmp_path)
    machine.source(40)
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    with simulator(
        "--batch-s", "4", "--batch-step-s", "4", "--batch-stalled-share", "1"
    ) as provider:
        arguments = machine.run_arguments(
            provider, "--lane", "batch", "--lanes", "batch,api", "--workers", "1", *PRICES
        )
        process = machine.start(*arguments)
        eventually(lambda: _answered(provider) >= 10)
        status, told = machine.penstock("move", "reviews", "api", "--state", "out/.penstock")
        assert status == 0, told
        told, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 0, told + machine.logs()
        assert "1 batch of this job is still at the provider" in told
        flowed = re.sub(r"\s+", " ", told)
        assert "A little later, this reads them: penstock run" in flowed
        before, calls = machine.report(), provider.stats()["requests"]
        assert (before["succeeded"], before["answered_twice"]) == (40, 0)
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert "the answers are waited for" in told
        assert "still at the provider" not in told
        after, answered = machine.report(), provider.stats()["batches"]["answered"]
        assert (after["succeeded"], after["answered_twice"]) == (40, answered)
        assert after["cost_usd"] > before["cost_usd"]
        assert provider.stats()["requests"] == calls
        assert len(machine.lines("output.jsonl")) == 40
        status, told = machine.penstock(*arguments)
        assert (status, "starting" in told, machine.leftovers()) == (0, False, []), told


def _answered(provider: Simulator) -> int:
    """In its batches so far, whether they have ended or not."""
    with urllib.request.urlopen(provider.url.removesuffix("/v1") + "/batches", timeout=5) as answer:
        return sum(batch["answered"] for batch in json.load(answer)["batches"])

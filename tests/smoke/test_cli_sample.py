"""`penstock run --sample`: a look before the whole job, and nothing paid twice."""

from __future__ import annotations

import json
from pathlib import Path

from machine import Machine, simulator


def test_the_run_of_all_takes_over_its_sample(tmp_path: Path) -> None:
    """A sample is a job of its own, drawn at random, and says what all cost; the whole job with the
    same options does not pay it again (D14)."""
    machine = Machine(tmp_path)
    machine.source(100)
    with simulator() as provider:
        arguments = machine.run_arguments(provider, "--workers", "1")
        status, told = machine.penstock(*arguments, "--sample", "5")
        assert status == 0, told + machine.logs()
        (sampled,) = (tmp_path / "out").glob("sample-*/output.jsonl")
        ids = {json.loads(line)["custom_id"] for line in sampled.read_text().splitlines()}
        assert len(ids) == 5
        assert "all 100 documents, as a random sample of 5 has them, with 90% intervals" in told
        assert "from so few documents" in told
        assert provider.stats()["requests"] == 5
        status, told = machine.penstock(*arguments, "--dry-run")
        assert (status, provider.stats()["requests"]) == (0, 5)
        assert "as a random sample of 5 has them" in told
        status, told = machine.penstock(*arguments, "--sample", "5")
        assert (status, provider.stats()["requests"]) == (0, 5), (
            "the same documents are drawn again"
        )
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert "5 documents are taken over from a sample" in told
        assert provider.stats()["requests"] == 100
        assert (machine.report()["total"], machine.report()["succeeded"]) == (100, 100)
        assert len(machine.lines("output.jsonl")) == 100

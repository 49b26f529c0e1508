"""`penstock run --sample`: a look before the whole job, and nothing paid twice."""

from __future__ import annotations

import json
from pathlib import Path

from machine import Machine, simulator


def test_the_run_of_all_takes_over_its_sample(tmp_path: Path) -> None:
    """A sample is a job of its own, spread over the source; the whole job with the same options does not pay it
    again (D14)."""
    machine = Machine(tmp_path)
    machine.source(100)
    with simulator() as provider:
        arguments = machine.run_arguments(provider, "--workers", "1")
        status, told = machine.penstock(*arguments, "--sample", "5")
        assert status == 0, told + machine.logs()
        (sampled,) = (tmp_path / "out").glob("sample-*/output.jsonl")
        ids = {json.loads(line)["custom_id"] for line in sampled.read_text().splitlines()}
        assert ids == {f"doc-{number}" for number in (0, 20, 40, 60, 80)}
        assert provider.stats()["requests"] == 5
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert "5 documents are taken over from a sample" in told
        assert provider.stats()["requests"] == 100
        assert (machine.report()["total"], machine.report()["succeeded"]) == (100, 100)
        assert len(machine.lines("output.jsonl")) == 100

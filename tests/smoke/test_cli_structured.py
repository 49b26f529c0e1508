"""Answers by a schema as a newcomer has them: one command from plain rows to labelled tables, and
what is said where it fails."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from machine import Machine, simulator

MODELS = """
from typing import Literal
from pydantic import BaseModel, ConfigDict

class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str
    zip: int

class Ticket(BaseModel):
    model_config = ConfigDict(extra="forbid")
    label: Literal["praise", "complaint"]
    score: float
    urgent: bool
    tags: list[str]
    place: Place | None
    text: str
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "models.py").write_text(MODELS)
    return Machine(tmp_path)


def test_rows_become_labelled_tables_in_one_command(machine: Machine) -> None:
    """The model's fields are columns of CSV and Parquet, nested ones as JSON; every document is
    asked once."""
    parquet = pytest.importorskip("pyarrow.parquet")
    machine.source(20)
    with simulator() as provider:
        schema = ["--response-schema", "models:Ticket", "--output-format", "parquet"]
        arguments = machine.run_arguments(provider, *schema)
        shown = machine.penstock("preview", *arguments[1:2], *arguments[6:10], *schema)[1]
        assert "get json_schema: strictly kept to where the provider can" in shown
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert provider.stats()["requests"] == 20
    (rows,) = [
        parquet.read_table(path).to_pylist() for path in (machine.folder / "out").glob("*.parquet")
    ]
    assert len(rows) == 20
    first = rows[0]
    assert (first["label"] in ("praise", "complaint"), first["score"], first["urgent"]) == (
        True,
        1.0,
        True,
    )
    assert [type(one) for one in json.loads(first["tags"])] == [str]
    assert set(json.loads(first["place"])) == {"city", "zip"}
    assert json.loads(first["answer"])["text"] == first["answer_text"]
    state = str(machine.folder / "out" / ".penstock")
    assert machine.penstock("results", "reviews", "--state", state, "-o", "labels.csv")[0] == 0
    with (machine.folder / "labels.csv").open(newline="") as file:
        labels = list(csv.DictReader(file))
    assert {row["label"] for row in labels} <= {"praise", "complaint"}
    assert json.loads(labels[0]["place"])["zip"] == 1


def test_a_provider_without_schemas_is_named_with_the_way_on(machine: Machine) -> None:
    """The job pauses before many calls, none of its documents is dead, and the command that it
    prints works."""
    machine.source(600)
    with simulator("--structured", "none") as provider:
        status, told = machine.penstock(
            *machine.run_arguments(provider, "--response-schema", "models:Ticket")
        )
        assert status == 1, told + machine.logs()
        assert (
            "with response_format=json_object or none, and say in the prompt which JSON is wanted"
            in told
        )
        assert "start another for example with:" in told
        assert "--response-format json_object --out out-2" in told
        assert provider.stats()["requests"] < 600


def test_answers_in_prose_are_explained(machine: Machine) -> None:
    """Where nothing asks for JSON all answers are refused alike, and screen and report say what to
    change."""
    machine.source(12)
    with simulator() as provider:
        unasked = (
            "--response-schema",
            "models:Ticket",
            "--response-format",
            "none",
            "--schema-repairs",
            "0",
        )
        status, told = machine.penstock(*machine.run_arguments(provider, *unasked))
        assert status == 3, told + machine.logs()
    assert "all 12 documents failed alike (200, schema_mismatch)" in told
    assert "nothing tells the model which JSON is wanted" in told
    assert "nothing tells the model which JSON is wanted" in machine.report()["advice"][1]

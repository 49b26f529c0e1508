"""The schema of a Pydantic model, had from its import path in a child."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_producer import SpecError
from penstock_producer.job import response_schema
from penstock_producer.job.response_schema import ModelFault, is_model_path, schema_of_model
from penstock_producer.jobfile import JobFile

MODULE = """
import os

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

print("modules may print")
os.write(1, b"and write")

class Place(BaseModel):
    city: str

class Ticket(BaseModel):
    label: str = Field(max_length=20)
    urgent: bool
    place: Place | None = None

class Plain(TypedDict):
    label: str

class Odd:
    pass

ticket = Ticket(label="x", urgent=True)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_of_test.py").write_text(MODULE)
    (tmp_path / "ends.py").write_text("import os\nos._exit(7)")
    (tmp_path / "sticks.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.chdir(tmp_path)


def test_a_model_is_named_by_its_import_path() -> None:
    """Found in the working folder, with its parts; what the module prints is no part of the
    answer."""
    schema = schema_of_model("models_of_test:Ticket")
    assert list(schema["properties"]) == ["label", "urgent", "place"]
    assert schema["required"] == ["label", "urgent"]
    assert "Place" in schema["$defs"]
    assert schema_of_model("models_of_test:Plain")["properties"]["label"]["type"] == "string"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "no_such_module_of_test:Ticket",
            "no_such_module_of_test cannot be imported (ModuleNotFoundError",
        ),
        ("models_of_test:Tickets", "Tickets is not in models_of_test"),
        ("models_of_test:ticket", "ticket is Ticket, not a class"),
        ("models_of_test:Odd", "Odd has no JSON schema"),
        ("ends:Ticket", "importing it ended the process with status 7"),
    ],
)
def test_what_is_no_model_says_why(path: str, says: str) -> None:
    """Whatever a module does when it is imported, it does in the child, and one sentence comes
    back."""
    with pytest.raises(ModelFault) as caught:
        schema_of_model(path)
    assert says in str(caught.value)


def test_a_module_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing has a time limit."""
    monkeypatch.setattr(response_schema, "TIMEOUT_S", 0.5)
    with pytest.raises(ModelFault, match=r"longer than 0\.5 s"):
        schema_of_model("sticks:Ticket")


def test_a_file_is_no_model(tmp_path: Path) -> None:
    """A file that is there goes before a module of the same spelling; a path with a slash is never
    a module."""
    (tmp_path / "a:B").write_text("{}")
    assert [is_model_path(text) for text in ("a:B", "a.b:C", "schemas/a:B", "answer.json")] == [
        False,
        True,
        False,
        False,
    ]


def test_a_job_spec_file_may_name_a_model(tmp_path: Path) -> None:
    """What is stored is its schema; a wrong name is refused with the line of the file."""
    path = tmp_path / "night.yaml"
    path.write_text(
        "source: docs.jsonl\nmodel: m\nprompt: '{text}'\nresponse_schema: models_of_test:Ticket\n"
    )
    assert (JobFile.load(path).spec().response_schema or {})["title"] == "Ticket"
    path.write_text("source: docs.jsonl\nresponse_schema: models_of_test:Nothing\n")
    with pytest.raises(SpecError, match=r"night.yaml line 2.*Nothing is not in models_of_test"):
        JobFile.load(path)

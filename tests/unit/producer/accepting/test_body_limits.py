"""How large one request may become, and which places of a source a message may name."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_ledger import open_database
from penstock_ledger.model import ItemKey
from penstock_producer import JobSpec, Producer, TooManyBadRows
from penstock_producer.errors import BadReference, InvalidDocument
from penstock_producer.open_job import DocumentChecker
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.overrides import Overrides
from penstock_workers.item.run.reading import Bodies
from penstock_workers.settings import WorkerSettings

MIB = 1024 * 1024


def test_a_template_that_multiplies_a_column_is_refused_before_it_is_joined(tmp_path: Path) -> None:
    """300 characters of template over a field of 2 MB are a bad row of that line, and cost no 200
    MB (B8)."""
    path = tmp_path / "large.jsonl"
    path.write_text('{"id": "a", "text": "%s"}\n' % ("x" * 2 * MIB))
    settings = ProducerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")
    with Producer(settings) as producer:
        tracemalloc.start()
        try:
            with pytest.raises(
                TooManyBadRows, match=r"body_too_large.*max_body_bytes allows 16777216"
            ):
                producer.submit(path, JobSpec(prompt="{text}" * 100, model="m"))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 60 * MIB


@pytest.mark.parametrize("value", [["x"] * 1000, {"a": "x" * 4000}, "x" * 4000])
def test_pushed_documents_have_the_same_limit(value: Any) -> None:
    """`max_body_bytes` holds for texts and for columns that are JSON, in documents that are pushed
    (B8)."""
    checker = DocumentChecker(JobSpec(prompt="{v}{v}{v}", model="m"), MIB, 10_000)
    with pytest.raises(InvalidDocument, match="body_too_large"):
        checker.check("a", {"v": value})
    assert checker.check("a", {"v": "short"})[0] == "a"


def test_a_body_that_grows_by_its_params_is_refused() -> None:
    """What counts is the request as it is sent: escapes and parameters included (B8)."""
    checker = DocumentChecker(JobSpec(model="m", params={"stop": "y" * 9_000}), MIB, 10_000)
    with pytest.raises(InvalidDocument, match="body_too_large"):
        checker.check("a", {"messages": [{"role": "user", "content": "x" * 2_000}]})


def test_a_replay_multiplies_nothing_either() -> None:
    """The prompt of an override that repeats the text is a fault of its row (B8)."""
    overrides = Overrides({"prompt": "{prompt}" * 100})
    with pytest.raises(RowFault) as refused:
        overrides.apply(b'{"prompt": "%s"}' % (b"x" * MIB))
    assert refused.value.code == "body_too_large"


def test_the_limit_travels_in_the_pin(tmp_path: Path) -> None:
    """A feeder with other settings refuses the same rows as the survey did (B8)."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "text": "%s"}\n{"id": "b", "text": "short"}\n' % ("x" * 2000))
    settings = ProducerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db", max_body_bytes=1024)
    with Producer(settings) as producer:
        job = producer.submit(path, JobSpec(prompt="{text}", model="m", max_bad_rows=1))
    from penstock_producer.sources import Document, open_source

    rows = list(open_source(job.source, JobSpec.from_json(job.spec)).documents({}))
    assert [row.doc_id for row in rows if isinstance(row, Document)] == ["b"]


def test_an_id_with_half_a_character_is_an_error_of_ours() -> None:
    """An id with a lone surrogate is refused by name: the id, its value and the fix (B29)."""
    with pytest.raises(InvalidDocument, match=r"invalid_id.*surrogate"):
        DocumentChecker(JobSpec(prompt="{v}", model="m"), MIB).check("half\ud800", {"v": "x"})


@pytest.mark.parametrize(
    "ref",
    [
        "0:99999999999",
        "0:99999999",
        "5:3",
        "x",
        "0:-1",
        "-1:5",
        "1:",
        "0:8388609",
        "٣:٤",
        "9" * 30 + ":1",
    ],
)
def test_a_forged_reference_is_the_messages_fault(tmp_path: Path, ref: str) -> None:
    """A message that names another place than its document's reads nothing, and its job does not
    stop for it (B2)."""
    settings = WorkerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(BadReference):
        _fetch(tmp_path, settings, "a", ref)


def test_a_reference_to_another_document_is_refused(tmp_path: Path) -> None:
    """The document at the place must be the one that the message names (B2)."""
    settings = WorkerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")
    assert b"first" in _fetch(tmp_path, settings, "a", "0:28")
    with pytest.raises(BadReference, match="another document"):
        _fetch(tmp_path, settings, "b", "0:28")


def _fetch(folder: Path, settings: WorkerSettings, doc_id: str, ref: str) -> bytes:
    path = folder / "rows.jsonl"
    path.write_text('{"id": "a", "text": "first"}\n{"id": "b", "text": "other"}\n')
    with Producer(settings) as producer:
        job = producer.submit(path, JobSpec(prompt="{text}", model="m"), job_key="one")
    database = open_database(settings.database_url)
    key = ItemKey(job.job_id, 1, doc_id)
    attempt: Any = SimpleNamespace(key=key)
    try:
        return Bodies(database, settings)._read(attempt, ref)
    finally:
        database.close()

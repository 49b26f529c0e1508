"""Result files belong to one job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock_cli import files
from penstock_cli.errors import UsageProblem


def report(folder: Path, job: object) -> None:
    (folder / "report.json").write_text(json.dumps({"job": job, "total": 3}))


def test_files_of_another_job_are_not_overwritten(tmp_path: Path) -> None:
    """A second job in the same --out is refused before anything starts, with a folder that would do
    (D6)."""
    report(tmp_path, "reviews")
    with pytest.raises(
        UsageProblem, match=r"job 'reviews'.* job 'letters' would overwrite.*-letters$"
    ) as caught:
        files.refuse_other_jobs(str(tmp_path), "letters")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["output.jsonl", "errors.jsonl", "report.json"])
def test_files_of_something_else_are_not_overwritten(tmp_path: Path, name: str) -> None:
    """A file of that name without a report of Penstock beside it is left alone (D6)."""
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(UsageProblem, match=name):
        files.refuse_other_jobs(str(tmp_path), "letters")


def test_the_same_job_and_an_empty_folder_are_fine(tmp_path: Path) -> None:
    """Resuming writes its own files again (D6)."""
    files.refuse_other_jobs(str(tmp_path / "new"), "letters")
    files.refuse_other_jobs(str(tmp_path), "letters")
    report(tmp_path, "letters")
    (tmp_path / "output.jsonl").write_text("")
    files.refuse_other_jobs(str(tmp_path), "letters")


def test_results_are_not_written_among_the_sources(tmp_path: Path) -> None:
    """A folder that is read as one job is no place for its results, which would be read the next
    time."""
    for out in (tmp_path, tmp_path / "out", tmp_path / "deep" / "out"):
        with pytest.raises(UsageProblem, match="would be sources of the next run"):
            files.probe(str(out), f"{tmp_path}/")
    for out in (tmp_path / "_out", tmp_path / ".out" / "x"):
        files.probe(str(out), f"{tmp_path}/")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("s3://b/p/output.jsonl", "output.jsonl there is the source itself"),
        ("s3://b/p/errors.jsonl", "errors.jsonl there is the source itself"),
        ("s3://b/", "its files would be sources of the next run"),
        ("s3://b/p/", "its files would be sources of the next run"),
        ("s3://b/p/docs.jsonl", None),
        ("s3://b/pp/", None),
        ("s3://other/p/output.jsonl", None),
    ],
)
def test_a_source_in_a_bucket_is_not_written_over(
    source: str, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by an object of the results, nor by results below the prefix that is read."""
    monkeypatch.setattr("penstock_producer.outputs.probe_sink", lambda out, **_: None)
    for out in ("s3://b/p", "s3://b/p/"):
        if says is None:
            files.probe(out, source)
        else:
            with pytest.raises(UsageProblem, match=says):
                files.probe(out, source)

"""Folders and patterns: several files as one job, with rows numbered through and messages that name
the file."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from penstock_producer import Producer
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import BadReference, SourceChanged, SourceError
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import BadRow, Document, open_source
from penstock_producer.sources.listings import new_files
from penstock_producer.sources.open import unchanged

SPEC = JobSpec(prompt="{text}", model="m", max_bad_rows=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of three formats, and what tools leave beside them."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_text(
        '{"id": "a1", "text": "x"}\n\n{"id": "a2", "text": "y"}\n\n\n'
    )
    (tmp_path / "data/b.csv").write_text('id,text\nb1,"two\nlines"\nb2,x,y\na2,again\nb3,z\n')
    (tmp_path / "data/c.jsonl.gz").write_bytes(gzip.compress(b'{"id": "c1", "text": "x"}\noops\n'))
    (tmp_path / "data/_SUCCESS").write_text("")
    (tmp_path / "data/.DS_Store").write_bytes(b"\0")
    return tmp_path / "data"


@pytest.mark.parametrize("where", ["{}/", "{}/*", "{}/[abc].*"])
def test_files_are_one_source_in_the_order_of_their_names(folder: Path, where: str) -> None:
    """Every file is read by its own format, and every cursor and position leads to the same rows,
    from the pin as well."""
    found = survey(open_source(where.format(folder), SPEC), SPEC)
    assert found.total == 8
    source = open_source(json.loads(json.dumps(found.pin)), SPEC)
    rows = list(source.documents({}))
    assert [row.doc_id for row in rows if isinstance(row, Document)] == [
        "a1",
        "a2",
        "b1",
        "a2",
        "b3",
        "c1",
    ]
    assert len({row.line for row in rows}) == len(rows)
    for index, row in enumerate(rows):
        assert list(source.documents(row.cursor)) == rows[index + 1 :]
        if isinstance(row, Document):
            assert source.fetch(row.position).body == row.body
    assert unchanged(found.pin, where.format(folder))


def test_messages_name_the_file_and_its_line(folder: Path) -> None:
    """A bad row is found by the file and the line in it, also where an id was used in another
    file."""
    found = survey(open_source(f"{folder}/", SPEC), SPEC)
    ragged, twice, broken = (str(refusal.row) for refusal in found.refused)
    assert f"{folder}/b.csv line 4: csv_ragged" in ragged
    assert f"{folder}/b.csv line 5: duplicate_custom_id" in twice
    assert f"The id of line 5 was already used in line 3 of {folder}/a.jsonl" in twice
    assert f"{folder}/c.jsonl.gz line 2: invalid_json_line" in broken


def test_a_folder_is_one_job(folder: Path, tmp_path: Path) -> None:
    """A folder is submitted as a file is: bad rows are dead letters, and a key is the same job
    until a file is added."""
    with Producer(database_url=f"sqlite:///{tmp_path}/ledger.db") as producer:
        job = producer.submit(f"{folder}/", SPEC, job_key="night")
        assert job.total == 8
        letters = {letter.key.doc_id: letter.line for letter in producer.dead_letters(job.job_id)}
        assert len(letters) == 3
        assert producer.submit(f"{folder}/", SPEC, job_key="night").job_id == job.job_id
        os.utime(folder / "a.jsonl", (1, 1))
        assert producer.submit(f"{folder}/*", SPEC, job_key="night").job_id == job.job_id
        (folder / "d.jsonl").write_text('{"id": "d1", "text": "x"}\n')
        with pytest.raises(Exception, match="another spec or source"):
            producer.submit(f"{folder}/", SPEC, job_key="night")


def test_a_changed_file_stops_the_source_there(folder: Path) -> None:
    """Each file is held by its own pin."""
    source = open_source(survey(open_source(f"{folder}/", SPEC), SPEC).pin, SPEC)
    content = (folder / "b.csv").read_text()
    (folder / "b.csv").write_text(content.replace("b3", "b9"))
    os.utime(folder / "b.csv", (1, 1))
    rows = source.documents({})
    assert [next(rows).line, next(rows).line] == [1, 3]
    with pytest.raises(SourceChanged, match=r"b\.csv"):
        next(rows)
    for position in ("9/0:1", "0", "x/0:1", "0/0:99999999999"):
        with pytest.raises(BadReference):
            source.fetch(position)


def test_what_stands_for_no_file_or_too_many_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern without a match, a folder that does not exist or holds other things, and too many
    files are named."""
    for where, words in {
        f"{folder}/*.txt": "stands for no file",
        f"{folder}/none/": "cannot be listed",
        f"{folder}/\0/": "cannot be a path",
    }.items():
        with pytest.raises(SourceError, match=words):
            open_source(where, SPEC)
    (folder / "notes.md").write_text("x")
    pin = open_source(f"{folder}/", SPEC).pin()
    assert pin["skipped"] == {"count": 1, "names": ["notes.md"]}
    monkeypatch.setattr(new_files, "MAX_FILES", 2)
    with pytest.raises(SourceError, match="stands for more than 2 files"):
        open_source(f"{folder}/[abc].*", SPEC)


def test_folders_in_folders_are_read_as_prefixes_are(folder: Path) -> None:
    """All levels are read in the order of whole names; what tools leave is left out with all below
    it; `**` crosses levels."""
    for name in ("a/b.jsonl", "a.d/c.jsonl", "_temporary/0.jsonl", ".git/x.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f'{{"id": "{name}", "text": "x"}}\n')
    ids = [
        row.doc_id
        for row in open_source(f"{folder}/", SPEC).documents({})
        if isinstance(row, Document)
    ]
    assert ids == ["a.d/c.jsonl", "a1", "a2", "a/b.jsonl", "b1", "a2", "b3", "c1"]
    for pattern, names in {
        "*/b*.jsonl": ["a/b.jsonl"],
        "**/[ac].jsonl": ["a.d/c.jsonl", "a1", "a2"],
    }.items():
        rows = open_source(f"{folder}/{pattern}", SPEC).documents({})
        assert [row.doc_id for row in rows if isinstance(row, Document)] == names


@pytest.mark.parametrize("kind", ["link out", "link to a folder", "pipe", "no rights"])
def test_a_folder_with_what_is_no_file_of_it_is_refused(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    """A link out of the folder, a pipe, and a file without the right to read it are named: nothing
    is left out in silence."""
    odd, other = folder / "e.jsonl", tmp_path / "other.jsonl"
    other.write_text('{"id": "o", "text": "x"}\n')
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "no rights":
        odd.write_text("{}")
        odd.chmod(0)
        if os.access(odd, os.R_OK):
            pytest.skip("root reads everything")
    else:
        odd.symlink_to(other if kind == "link out" else tmp_path)
    with pytest.raises(SourceError, match=r"not_a_regular_file|no_right_to_read") as caught:
        open_source(f"{folder}/", SPEC)
    assert "e.jsonl" in str(caught.value)
    if kind == "link out":  # who names it asks for it
        assert survey(open_source(f"{folder}/e.*", SPEC), SPEC).total == 1


def test_a_file_whose_name_has_brackets_is_a_file(tmp_path: Path) -> None:
    """A name that exists is that file, whatever it would mean as a pattern."""
    (tmp_path / "a[1].jsonl").write_text('{"id": "x", "text": "t"}\n')
    found = survey(open_source(tmp_path / "a[1].jsonl", SPEC), SPEC)
    assert (found.total, found.pin["kind"]) == (1, "file")


def test_a_bad_row_keeps_its_line_in_the_file(folder: Path) -> None:
    """The ledger knows a row by its number in the job, people by its line."""
    bad = [row for row in open_source(f"{folder}/", SPEC).documents({}) if isinstance(row, BadRow)]
    assert [(row.line, row.shown_line) for row in bad] == [(7, 4), (11, 2)]


@pytest.mark.parametrize("where", ["{}/", "{}/*", "{}/*.csv"])
def test_a_remote_door_names_single_files(folder: Path, where: str) -> None:
    """A door that confines sources to roots neither lists folders nor expands patterns."""
    allowed = ProducerSettings(source_roots=(str(folder),))
    with pytest.raises(SourceError, match=r"source_forbidden|no_such_file"):
        survey(open_source(where.format(folder), SPEC, allowed, remote=True), SPEC)
    assert survey(open_source(f"{folder}/b.csv", SPEC, allowed, remote=True), SPEC).total == 4

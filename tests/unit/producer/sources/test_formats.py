"""A format of sources is one row of the registry and a reader: nothing else knows its name."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock_producer import SourceError, SpecError
from penstock_producer.accepting.remote_limits import DoorSettings
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import BadRow, Document, Record
from penstock_producer.source_formats import FORMATS, SAFE_FORMATS, SourceFormat
from penstock_producer.sources import open_source
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.readers.rows import PinnedRows

SPEC = JobSpec(prompt="Say {text}", model="m")
READERS = ("jsonl", "csv_rows", "columnar", "groups", "each_file")


class ToyRows(PinnedRows):
    """`TOY1`, and after it a record per `;`: an id, `=`, and a text.

    A position is "offset:length", a cursor the next record's offset and number."""

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        offset, number = int(cursor.get("offset", 4)), int(cursor.get("number", 0))
        for record in b"".join(self._blob.chunks(offset)).split(b";")[:-1]:
            position, number = f"{offset}:{len(record)}", number + 1
            offset += len(record) + 1
            after = {"offset": offset, "number": number}
            try:
                doc_id, body, endpoint = self._form.read(_fields(record))
            except RowFault as fault:
                yield self._bad(number, fault, after)
            else:
                yield Document(doc_id, body, position, number, after, endpoint)

    def fetch(self, position: str) -> Document:
        offset, length, _ = self._span(position)
        doc_id, body, endpoint = self._form.read(_fields(self._blob.read(offset, length)))
        return Document(doc_id, body, position, 0, {}, endpoint)

    def columns(self) -> None:
        """Return None: only the rows say it."""

    def records(self) -> Iterator[Record]:
        for number, record in enumerate(self._blob.read(4, 1000).split(b";")[:-1], 1):
            yield Record(number, _fields(record))


def _fields(record: bytes) -> dict[str, Any]:
    doc_id, equals, text = record.decode().partition("=")
    if not equals:
        raise RowFault("toy_malformed", "This record has no =.", fix="write id=text;")
    return {"id": doc_id, "text": text}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> SourceFormat:
    """A format that is registered as all others are."""
    module = ModuleType("toy_format")
    module.ToyRows = ToyRows  # type: ignore[attr-defined]  # made, not read
    monkeypatch.setitem(sys.modules, "toy_format", module)
    row = SourceFormat(
        "toy", "Toy", "toy_format:ToyRows", (".toy",), b"TOY1", package="toy_box", extra="toys"
    )
    monkeypatch.setitem(FORMATS, "toy", row)
    return row


def write(place: Path, name: str, content: bytes = b"TOY1a=one;b=two;odd;c=three;") -> Path:
    path = place / name
    path.write_bytes(content)
    return path


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("rows.toy", SPEC, id="by its ending"),
        pytest.param("export", SPEC, id="by its first bytes"),
        pytest.param("rows.txt", SPEC.model_copy(update={"format": "toy"}), id="as the job says"),
        pytest.param("rows.toy.gz", SPEC, id="compressed"),
    ],
)
def test_a_registered_format_is_read_as_others_are(
    tmp_path: Path, name: str, spec: JobSpec
) -> None:
    """It is found by ending, magic and --format; its pin opens it again, where any cursor goes on
    and any position is fetched."""
    path = write(tmp_path, name)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    found = survey(open_source(path, spec), spec.model_copy(update={"max_bad_rows": 1}))
    assert (found.total, [refusal.row.code for refusal in found.refused]) == (4, ["toy_malformed"])
    assert found.pin["format"] == "toy"
    again = open_source(found.pin, spec)
    rows = list(again.documents({}))
    assert [row.doc_id for row in rows if isinstance(row, Document)] == ["a", "b", "c"]
    for index, row in enumerate(rows):
        assert list(again.documents(row.cursor)) == rows[index + 1 :]
        if isinstance(row, Document):
            assert again.fetch(row.position).body == row.body


@pytest.mark.usefixtures("toy")
def test_files_of_a_registered_format_are_rows_of_a_folder(tmp_path: Path) -> None:
    """A folder of them is one job, as a folder of JSON Lines is."""
    for name in ("1.toy", "2.toy"):
        write(tmp_path, name, f"TOY1{name}=x;".encode())
    rows = list(open_source(f"{tmp_path}/", SPEC).documents({}))
    assert [row.doc_id for row in rows if isinstance(row, Document)] == ["1.toy", "2.toy"]


@pytest.mark.usefixtures("toy")
def test_a_registered_format_is_refused_where_it_is_not_meant(tmp_path: Path) -> None:
    """As JSON Lines or CSV it is refused by its first bytes, with the ending and the format that read
    it; remote doors refuse it until a setting allows it."""
    for name in ("rows.jsonl", "rows.csv"):
        with pytest.raises(SourceError, match=r"is Toy, not .*end in \.toy, or give format=toy"):
            survey(open_source(write(tmp_path, name), SPEC), SPEC)
    assert "toy" not in SAFE_FORMATS
    assert DoorSettings(formats=("toy",)).formats == ("toy",)
    with pytest.raises(SourceError, match=r"is toy, and the setting doors\.formats allows jsonl"):
        open_source(write(tmp_path, "rows.toy"), SPEC, uploaded=True, formats=SAFE_FORMATS)


def test_only_registered_formats_are_asked_for(tmp_path: Path) -> None:
    """A spec names a format of the registry, and a pin of a later release says what to do."""
    with pytest.raises(SpecError, match=r"/format: 'toy' is refused; Input should be 'jsonl', "):
        JobSpec(prompt="{text}", model="m", format="toy")
    pin = survey(open_source(write(tmp_path, "a.csv", b"id,text\n1,x\n"), SPEC), SPEC).pin
    with pytest.raises(SourceError, match=r"this release cannot read toy: .*; upgrade it"):
        open_source(pin | {"format": "toy"}, SPEC)


def test_a_format_that_needs_a_package_names_its_extra(toy: SourceFormat) -> None:
    """Where the package is missing, the message has the command that installs it."""
    with pytest.raises(
        SourceUnavailable, match=r"toy needs toy_box .*pip install penstock\[toys\]"
    ):
        toy.require()


def test_no_two_formats_are_mistaken_for_one_another() -> None:
    """Names of files and first bytes belong to one format each."""
    endings = [ending for row in FORMATS.values() for ending in row.endings]
    magics = [row.magic for row in FORMATS.values() if row.magic]
    assert len(set(endings)) == len(endings)
    assert not [
        (one, two) for one in magics for two in magics if one != two and one.startswith(two)
    ]


def test_readers_are_imported_when_a_source_is_opened() -> None:
    """A process that imports the sources imports no reader with them."""
    code = (
        "import sys, penstock_producer.sources.of_feed; "
        "print(*[name for name in sys.modules if name.startswith('penstock_producer.sources.r')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert loaded
    assert not loaded & set(READERS)

"""Images and sounds that rows name: what goes into a request, and what a document can never make
this machine read."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from penstock_producer import JobSpec, SourceChanged, SourceError, SourceUnavailable, SpecError
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import InvalidDocument
from penstock_producer.open_job import DocumentChecker
from penstock_producer.pins import DOOR, REMOTE
from penstock_producer.rows import BadRow, Document
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import open_source
from penstock_producer.sources.forms.media import MAX_BYTES, MAX_ITEMS, MAX_URL_CHARS, kind_of
from penstock_producer.sources.forms.media_places import places_of
from penstock_producer.sources.forms.strict_json import RowFault

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00" + bytes(24)
SPEC = JobSpec(model="m", prompt="What is on {id}?", image_fields=["image"])
SOUND = JobSpec(model="m", prompt="Write down {id}", audio_fields=["sound"])
DATA = "data:image/png;base64," + base64.b64encode(PNG).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source's folder beside one that holds what no document may read."""
    data = tmp_path / "data"
    (data / "img").mkdir(parents=True)
    (data / "img" / "a.png").write_bytes(PNG)
    (data / "a.wav").write_bytes(WAV)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.png").write_bytes(PNG + b"secret")
    return data


def opened(folder: Path, spec: JobSpec, *records: Any, **settings: Any) -> Any:
    path = folder / "docs.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"d{n}", **record}) + "\n" for n, record in enumerate(records))
    )
    return open_source(path, spec, ProducerSettings.model_construct(**settings))


def content(folder: Path, spec: JobSpec, record: Any, **settings: Any) -> list[dict[str, Any]]:
    (row,) = opened(folder, spec, record, **settings).documents({})
    assert isinstance(row, Document), row
    found: list[dict[str, Any]] = json.loads(row.body)["messages"][0]["content"]
    return found


def refused(folder: Path, spec: JobSpec, record: Any, **settings: Any) -> BadRow:
    (row,) = opened(folder, spec, record, **settings).documents({})
    assert isinstance(row, BadRow), row
    assert row.fix
    assert len(row.seen) <= 80
    return row


def test_files_go_into_the_request_and_addresses_are_passed_on(folder: Path) -> None:
    """Behind the text, in the order of columns and lists; the kind is that of the first bytes, not
    of the name."""
    (folder / "img" / "b.txt").write_bytes(b"\xff\xd8\xff\xe0" + bytes(8))
    spec = JobSpec(
        model="m", prompt="Look:", image_fields=["image", "more"], audio_fields=["sound"]
    )
    given = {
        "image": "img/a.png",
        "more": ["https://host/x.png?a=b", str(folder / "img" / "b.txt"), ""],
        "sound": "a.wav",
    }
    text, inlined, address, jpeg, sound = content(folder, spec, given)
    assert text == {"type": "text", "text": "Look:"}
    assert inlined == {"type": "image_url", "image_url": {"url": DATA}}
    assert address == {"type": "image_url", "image_url": {"url": "https://host/x.png?a=b"}}
    assert jpeg["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")
    assert sound == {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"},
    }
    assert content(folder, SPEC, {"image": []}) == [{"type": "text", "text": "What is on d0?"}]
    assert (
        content(folder, SPEC, {"image": "data:text/html;base64," + DATA.partition(",")[2]})[1]
        == inlined
    )


@pytest.mark.parametrize(
    "where",
    [
        "../outside/secret.png",
        "img/../../outside/secret.png",
        "/etc/passwd",
        "/proc/self/environ",
        "link.png",
        "linked/secret.png",
        "img//a.png",
        "./img/a.png",
        "img/a.png\x00",
        "img/\ud800.png",
        "~/x.png",
        "/",
        "s3://bucket/x.png",
    ],
)
def test_a_document_reads_nothing_outside_of_its_folder(folder: Path, where: str) -> None:
    """Parents, absolute paths, links, other buckets: refused by name or when opened, whether they
    exist or not."""
    (folder / "link.png").symlink_to(folder.parent / "outside" / "secret.png")
    (folder / "linked").symlink_to(folder.parent / "outside")
    path = folder / "docs.jsonl"
    path.write_text('{"id": "d0", "image": "x"}\n')
    row = next(iter(open_source(path, SPEC).documents({})))
    assert isinstance(row, BadRow)
    form = open_source(path, SPEC)._form  # type: ignore[attr-defined]  # a row of any text, as other formats may have it
    with pytest.raises(Exception, match=r"media_(forbidden|unavailable)") as error:
        form.read({"id": "d0", "image": where})
    assert error.value.code in ("media_forbidden", "media_unavailable")  # type: ignore[attr-defined]
    assert "secret" not in error.value.message  # type: ignore[attr-defined]


def test_other_folders_are_the_operators_to_allow(folder: Path) -> None:
    """`source_roots` opens them for files, and links out of an allowed folder stay shut."""
    outside = folder.parent / "outside"
    given = {"image": str(outside / "secret.png")}
    assert refused(folder, SPEC, given).code == "media_forbidden"
    assert content(folder, SPEC, given, source_roots=(str(outside),))[1]["type"] == "image_url"
    (folder / "link.png").symlink_to(outside / "secret.png")
    assert refused(folder, SPEC, {"image": "link.png"}).code == "media_forbidden"


def test_a_source_named_through_a_parent_or_a_link_has_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder counts as it is typed and as it really is."""
    opened(folder, SPEC, {"image": "img/a.png"}, {"image": str(folder / "img" / "a.png")})
    (folder.parent / "alias").symlink_to(folder)
    monkeypatch.chdir(folder.parent / "outside")
    for where in (
        "../data/docs.jsonl",
        "../alias/docs.jsonl",
        str(folder.parent / "alias" / "docs.jsonl"),
    ):
        assert [type(row) for row in open_source(where, SPEC).documents({})] == [
            Document,
            Document,
        ], where


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (None, "missing_field"),
        (5, "media_invalid"),
        ([5], "media_invalid"),
        ({"url": "https://x/y.png"}, "media_invalid"),
        ("http://host/x.png", "media_invalid"),
        ("https://", "media_invalid"),
        ("https://user:pw@host/x.png", "media_invalid"),
        ("https://host/x y.png", "media_invalid"),
        ("https://host/\nx", "media_invalid"),
        ("https://[::1/x", "media_invalid"),
        ("https://host/" + "x" * MAX_URL_CHARS, "media_invalid"),
        ("file:///etc/passwd", "media_invalid"),
        ("ftp://host/x.png", "media_invalid"),
        ("javascript:alert(1)", "media_invalid"),
        ("gopher://x", "media_invalid"),
        ("data:image/png,abc", "media_invalid"),
        ("data:image/png;base64,%%%", "media_invalid"),
        ("data:image/svg+xml;base64,PHN2ZyB4bWxucz0iIi8+", "media_invalid"),
        ("data:image/png;base64,aGVsbG8=", "media_invalid"),
        ("data:image/png;base64," + "A" * 14_000_000, "body_too_large"),
        ("none.png", "media_unavailable"),
        ("img", "media_unavailable"),
        ("x" * 5_000, "media_unavailable"),
        (["img/a.png"] * (MAX_ITEMS + 1), "media_invalid"),
    ],
)
def test_what_is_no_image_is_a_bad_row(folder: Path, given: Any, code: str) -> None:
    """Wrong types, addresses that no provider fetches, other schemes, and what is no base64; each
    with its column and fix."""
    row = refused(folder, SPEC, {} if given is None else {"image": given}, max_line_bytes=2**25)
    assert (row.code, row.field, row.doc_id) == (code, "image", "d0")


def test_files_are_told_by_their_first_bytes_and_bounded(folder: Path) -> None:
    """SVG, archives, texts, sounds in a column of images, empty and huge files, and what is no file
    at all; none is decoded."""
    for name, data, words in (
        ("x.png", b"<?xml version='1.0'?><SVG onload='x'>", "It is SVG"),
        ("y.png", b"PK\x03\x04", "none of them"),
        ("z.png", b"", "this is empty"),
        ("w.png", WAV, "It is wav"),
        ("e.png", b"root:x:0:0", "none of them"),
    ):
        (folder / name).write_bytes(data)
        row = refused(folder, SPEC, {"image": name})
        assert (row.code, words in row.message) == ("media_invalid", True), row
    with (folder / "huge.png").open("wb") as file:
        file.write(PNG)
        file.truncate(50 * MAX_BYTES)  # a hole: nothing of it may be read
    assert refused(folder, SPEC, {"image": "huge.png"}).code == "media_too_large"
    os.mkfifo(folder / "pipe.png")
    assert refused(folder, SPEC, {"image": "pipe.png"}).code == "media_unavailable"
    assert refused(folder, SOUND, {"sound": "https://host/a.wav"}).code == "media_invalid"
    assert refused(folder, SOUND, {"sound": "img/a.png"}).message.startswith("It is png")


def test_a_request_with_its_images_is_bounded(folder: Path) -> None:
    """Several files that fit one by one are refused together, before they are all read."""
    (folder / "img" / "big.png").write_bytes(PNG + bytes(40_000))
    given = {"image": ["img/big.png"] * 5}
    row = refused(folder, SPEC, given, max_body_bytes=100_000)
    assert row.code in ("media_too_large", "body_too_large")
    assert len(content(folder, SPEC, {"image": ["img/big.png"]}, max_body_bytes=100_000)) == 2


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "png"),
        (b"\xff\xd8\xff\xdb", "jpeg"),
        (b"GIF89a", "gif"),
        (b"RIFF0000WEBPVP8 ", "webp"),
        (WAV, "wav"),
        (b"ID3\x04", "mp3"),
        (b"\xff\xfb\x90", "mp3"),
        (b"fLaC", "flac"),
        (b"OggS", "ogg"),
        (b"RIFF0000AVI ", None),
        (b"\xff", None),
        (b"\xff\xff", None),
        (b"BM", None),
        (b"%PDF-1.7", None),
    ],
)
def test_kinds_are_known_by_their_first_bytes(data: bytes, kind: str | None) -> None:
    """Those that models take, and no others."""
    found = kind_of(data)
    assert (found and found.name) == kind


def test_without_a_folder_rows_name_addresses_only(folder: Path) -> None:
    """Documents that a service pushes, and jobs of remote doors, read no file of this machine, now
    or later."""
    checker = DocumentChecker(SPEC, 100_000)
    body = json.loads(checker.check("a", {"id": "a", "image": "https://host/x.png"})[1])
    assert body["messages"][0]["content"][1]["image_url"]["url"] == "https://host/x.png"
    assert (
        json.loads(checker.check("a", {"id": "a", "image": DATA})[1])["messages"][0]["content"][1][
            "image_url"
        ]["url"]
        == DATA
    )
    for where in (str(folder / "img" / "a.png"), "img/a.png", "s3://b/k.png"):
        with pytest.raises(InvalidDocument) as error:
            checker.check("a", {"id": "a", "image": where})
        assert error.value.code == "media_forbidden"
    with pytest.raises(RowFault, match="media_forbidden"):
        places_of("gs://bucket/docs.jsonl", ProducerSettings.model_construct(), None).read(
            "img/a.png", 100, "image"
        )
    opened(folder, SPEC, {"image": "img/a.png"})
    settings = ProducerSettings.model_construct(source_roots=(str(folder),))
    remote = open_source(str(folder / "docs.jsonl"), SPEC, settings, remote=True)
    (row,) = remote.documents({})
    assert isinstance(row, BadRow)
    assert row.code == "media_forbidden"
    later = open_source(remote.pin() | {DOOR: REMOTE}, SPEC, settings)
    assert [type(one) for one in later.documents({})] == [BadRow]


def test_a_file_that_is_changed_or_gone_after_the_submit_is_noticed(folder: Path) -> None:
    """A worker that fetches the document later waits for a file that has gone, and never sends
    another one's content."""
    source = opened(folder, SPEC, {"image": "img/a.png"})
    found = survey(source, SPEC)
    (document,) = source.documents({})
    again = open_source(found.pin, SPEC)
    assert again.fetch(document.position).body == document.body
    path = folder / "img" / "a.png"
    path.rename(folder / "img" / "kept.png")
    with pytest.raises(SourceUnavailable, match="no such file"):
        again.fetch(document.position)
    (folder / "img" / "kept.png").rename(path)
    later = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))
    with pytest.raises(SourceChanged, match="changed after the job was submitted"):
        again.fetch(document.position)


def test_images_need_a_prompt_and_chats(folder: Path) -> None:
    """Refused where the job is submitted."""
    for given, pointer in (
        ({"image_fields": ["x"]}, "/image_fields"),
        ({"audio_fields": ["x"], "messages_field": "chat"}, "/audio_fields"),
        ({"image_fields": "x", "prompt": "{id}"}, "/image_fields"),
        ({"image_fields": [""], "prompt": "{id}"}, "/image_fields/0"),
        ({"image_fields": ["x"] * 21, "prompt": "{id}"}, "/image_fields"),
    ):
        with pytest.raises(SpecError) as error:
            JobSpec.from_json({"model": "m", **given})
        assert [problem.pointer for problem in error.value.problems] == [pointer]
    with pytest.raises((SpecError, SourceError), match="takes no chat messages"):
        opened(
            folder,
            JobSpec(model="m", prompt="{id}", image_fields=["x"], endpoint="/v1/completions"),
            {"x": ""},
        )


def table(folder: Path, kind: str, images: list[Any]) -> Path:
    """Rows as Hugging Face's datasets store them, in Parquet, or in a stream of Arrow."""
    rows = pyarrow.table(
        {"id": [f"d{number}" for number in range(len(images))], "image": pyarrow.array(images)}
    )
    path = folder / f"docs.{kind}"
    if kind == "parquet":
        parquet.write_table(rows, path)
    else:
        with pyarrow.ipc.new_stream(path, rows.schema) as stream:
            stream.write_table(rows)
    return path


def of_table(
    folder: Path, kind: str, images: list[Any], spec: JobSpec = SPEC
) -> list[Document | BadRow]:
    source = open_source(table(folder, kind, images), spec)
    rows = list(source.documents({}))
    pinned = open_source(folder / f"docs.{kind}", spec)
    pinned.pin()
    for row in rows:
        if isinstance(row, Document):
            assert pinned.fetch(row.position).body == row.body, "a worker reads what was surveyed"
    return rows


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "value",
    [
        PNG,
        {"bytes": PNG, "path": "cat.txt"},
        {"bytes": None, "path": "img/a.png"},
        [{"bytes": PNG, "path": None}],
    ],
    ids=["bytes", "struct", "path", "list"],
)
def test_images_in_columns_go_into_the_request(folder: Path, kind: str, value: Any) -> None:
    """Bytes, alone or with a path as Hugging Face stores them, are put behind the prompt; without
    bytes the path is read."""
    (row,) = of_table(folder, kind, [value])
    assert isinstance(row, Document), row
    text, image = json.loads(row.body)["messages"][0]["content"]
    assert text["text"] == "What is on d0?"
    assert image == {"type": "image_url", "image_url": {"url": DATA}}


def test_sounds_in_columns_go_into_the_request(folder: Path) -> None:
    """A column of sounds is put into the request as the bytes that it holds, with the kind that
    they are."""
    spec = JobSpec(model="m", prompt="Write down {id}", audio_fields=["image"])
    (row,) = of_table(folder, "parquet", [{"bytes": WAV, "path": "a.wav"}], spec)
    assert isinstance(row, Document), row
    assert json.loads(row.body)["messages"][0]["content"][1]["input_audio"]["format"] == "wav"


@pytest.mark.parametrize(
    ("value", "code", "told"),
    [
        ({"bytes": b"hello", "path": "a.png"}, "media_invalid", "by its first bytes"),
        (
            {"bytes": PNG + bytes(MAX_BYTES), "path": None},
            "media_too_large",
            f"{MAX_BYTES} may still go",
        ),
        ({"bytes": b"", "path": None}, "media_invalid", "neither text nor bytes"),
        ({"bytes": None, "path": "../outside/secret.png"}, "media_forbidden", "Files may lie in"),
        (None, "missing_field", "is null in"),
    ],
    ids=["text", "large", "empty", "outside", "null"],
)
def test_unusable_images_in_columns_are_bad_rows(
    folder: Path, value: Any, code: str, told: str
) -> None:
    """With the column and the fix; rows beside them are not touched, and nothing is read that a
    path may not name."""
    good: Any = {"bytes": PNG, "path": None}
    first, bad, last = of_table(folder, "parquet", [good, value, good])
    assert isinstance(first, Document)
    assert isinstance(last, Document)
    assert isinstance(bad, BadRow), bad
    assert (bad.code, bad.field) == (code, "image")
    assert told in bad.message
    assert len(bad.seen) <= 80


def test_a_prompt_has_texts_beside_the_images(folder: Path) -> None:
    """The path may be named in the prompt; the content is no text, and bytes of columns that no
    flag names stay refused."""
    spec = JobSpec(model="m", prompt="{image.path}", image_fields=["image"])
    (row,) = of_table(folder, "parquet", [{"bytes": PNG, "path": "cat.png"}], spec)
    assert isinstance(row, Document), row
    assert json.loads(row.body)["messages"][0]["content"][0]["text"] == "cat.png"
    (bad,) = of_table(
        folder, "parquet", [PNG], JobSpec(model="m", prompt="{image}", image_fields=["image"])
    )
    assert isinstance(bad, BadRow)
    assert "leave it out of the prompt" in bad.fix
    (bad,) = of_table(folder, "parquet", [PNG], JobSpec(model="m", prompt="{image}"))
    assert isinstance(bad, BadRow)
    assert "image_fields" in bad.fix


def test_rows_with_large_images_are_decoded_a_few_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a thousand of them at once: a batch is bounded by its bytes."""
    monkeypatch.setattr("penstock_producer.sources.readers.groups.BATCH_BYTES", 10_000)
    monkeypatch.setattr("penstock_producer.sources.readers.columnar.PIECE_BYTES", 3_000)
    source = open_source(
        table(
            folder,
            "parquet",
            [{"bytes": PNG + os.urandom(1_000), "path": None} for _ in range(100)],
        ),
        SPEC,
    )
    sizes = [batch.num_rows for batch in source._batches(0)]  # type: ignore[attr-defined]  # what is held at a time
    assert sum(sizes) == 100
    assert max(sizes) <= 10
    assert len(list(source.documents({}))) == 100

"""Folders of images and sounds: each file is a document, whatever its name, and what is none is a
bad row with its name."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock_producer import JobSpec
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import SourceChanged, SourceError
from penstock_producer.rows import BadRow, Document
from penstock_producer.sources import open_source
from penstock_producer.sources.open import unchanged
from penstock_producer.sources.readers import each_file

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
JPEG = b"\xff\xd8\xff" + bytes(20)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(24)
SPEC = JobSpec(model="m", prompt="{id} {name} {bytes} {media_type}", max_bad_rows=20)
PLAIN = JobSpec(model="m", prompt="{id}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures and a sound, some under names that say nothing, all of one age."""
    for name, content in {"IMG_1": JPEG, "b/2.png": PNG, "c.jpeg": PNG, "d.wav": WAV}.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1000, 1000))
    return tmp_path / "photos"


def parts(row: Document | BadRow) -> list[dict[str, Any]]:
    assert isinstance(row, Document), str(row)
    found: list[dict[str, Any]] = json.loads(row.body)["messages"][0]["content"]
    return found


def refused(where: str, spec: JobSpec = SPEC) -> dict[str, str]:
    return {
        refusal.doc_id: refusal.row.code
        for refusal in survey(open_source(where, spec), spec).refused
    }


def test_each_picture_and_sound_is_a_document(folder: Path) -> None:
    """By their first bytes, without a flag: the content goes behind the prompt, which has the name,
    the size and the type."""
    pin = json.loads(json.dumps(survey(open_source(f"{folder}/", SPEC), SPEC).pin))
    assert pin["kind"] == "media"
    source = open_source(pin, SPEC)
    rows = list(source.documents({}))
    assert [row.doc_id for row in rows] == ["IMG_1", "b/2.png", "c.jpeg", "d.wav"]
    assert [parts(row)[0]["text"] for row in rows] == [
        "IMG_1 IMG_1 23 image/jpeg",
        "b/2.png 2.png 28 image/png",
        "c.jpeg c.jpeg 28 image/png",
        "d.wav d.wav 40 audio/wav",
    ]
    url = f"data:image/jpeg;base64,{base64.b64encode(JPEG).decode()}"
    assert parts(rows[0])[1:] == [{"type": "image_url", "image_url": {"url": url}}]
    sound = {"data": base64.b64encode(WAV).decode(), "format": "wav"}
    assert parts(rows[3])[1:] == [{"type": "input_audio", "input_audio": sound}]
    for index, row in enumerate(rows):
        assert isinstance(row, Document)
        assert list(source.documents(row.cursor)) == rows[index + 1 :]
        assert source.fetch(row.position).body == row.body


def test_what_is_no_picture_is_a_bad_row(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other files, empty, cut and large ones, links out of the folder and SVG: each by its name,
    and the others are fed."""
    monkeypatch.setattr(each_file, "MAX_BYTES", 1_000)
    (tmp_path / "secret.png").write_bytes(PNG)
    for name, content in {
        "e.txt": b"notes",
        "f.png": b"",
        "g.png": PNG[:5],
        "h.svg": b"<svg xmlns=''/>",
        "i.png": PNG + bytes(2_000),
    }.items():
        (folder / name).write_bytes(content)
    (folder / "j.png").symlink_to(tmp_path / "secret.png")
    assert refused(f"{folder}/") == {
        "e.txt": "media_invalid",
        "f.png": "media_invalid",
        "g.png": "media_invalid",
        "h.svg": "media_invalid",
        "i.png": "file_too_large",
        "j.png": "not_a_regular_file",
    }
    row = next(
        row for row in open_source(f"{folder}/", SPEC).documents({}) if isinstance(row, BadRow)
    )
    assert f"{folder}/e.txt: media_invalid" in str(row)
    assert "convert it to PNG, JPEG" in row.fix


def test_a_field_says_what_all_of_them_are(folder: Path) -> None:
    """`--image-field file` takes no sounds, `--audio-field file` no images, and another column is
    not there."""
    images = SPEC.model_copy(update={"image_fields": ["file"]})
    sounds = SPEC.model_copy(update={"audio_fields": ["file"]})
    assert refused(f"{folder}/", images) == {"d.wav": "media_invalid"}
    assert set(refused(f"{folder}/", sounds)) == {"IMG_1", "b/2.png", "c.jpeg"}
    with pytest.raises(
        SourceError, match=r"no column 'photo'.*'file', 'id', 'name', 'bytes', 'media_type'"
    ):
        open_source(f"{folder}/", SPEC.model_copy(update={"image_fields": ["photo"]}))
    claude = SPEC.model_copy(update={"endpoint": "/v1/messages", "params": {"max_tokens": 10}})
    assert refused(f"{folder}/", claude) == {"d.wav": "media_invalid"}
    embedded = SPEC.model_copy(update={"endpoint": "/v1/embeddings"})
    assert refused(f"{folder}/", embedded) == {}
    content = SPEC.model_copy(update={"prompt": "{file}"})
    assert set(refused(f"{folder}/", content).values()) == {"invalid_type"}


def test_the_first_files_say_what_a_folder_holds(folder: Path) -> None:
    """A picture tells by its bytes, a text or rows by their names, and most of the first decide;
    `--format media` decides for all, and a pattern chooses."""
    (folder / "A").write_text("no picture, and no name that says anything")
    assert refused(f"{folder}/") == {"A": "media_invalid"}
    (folder / "0.txt").write_text("a text")
    assert set(refused(f"{folder}/")) == {"A", "0.txt"}
    media = SPEC.model_copy(update={"format": "media"})
    assert set(refused(f"{folder}/", media)) == {"A", "0.txt"}
    assert refused(f"{folder}/**.png") == {}
    with pytest.raises(SourceError, match="is one file, and with the format media"):
        open_source(f"{folder}/IMG_1", media)
    with pytest.raises(
        SourceError, match=r"IMG_1 is jpeg \(image\), not JSON Lines; .* write .*/photos/"
    ):
        survey(open_source(f"{folder}/IMG_1", SPEC), SPEC)


def test_a_picture_that_changes_is_never_sent(folder: Path) -> None:
    """It stops the source, and a position reads nothing else."""
    pin = json.loads(json.dumps(survey(open_source(f"{folder}/", SPEC), SPEC).pin))
    source = open_source(pin, SPEC)
    first = next(source.documents({}))
    assert isinstance(first, Document)
    assert unchanged(pin, f"{folder}/")
    (folder / "IMG_1").write_bytes(PNG)
    assert not unchanged(pin, f"{folder}/")
    with pytest.raises(SourceChanged):
        source.fetch(first.position)
    with pytest.raises(SourceChanged):
        list(open_source(pin, SPEC).documents({}))

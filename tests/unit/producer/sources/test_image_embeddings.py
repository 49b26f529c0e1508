"""Images that rows name, as requests for embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock_producer import JobSpec, SpecError
from penstock_producer.job.repeats import answers_alike
from penstock_producer.rows import BadRow, Document
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import open_source

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
DATA = "data:image/png;base64,iVBORw0KGgoAAAAAAAAAAAAAAAAAAAAAAAAAAA=="


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files with one content."""
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(PNG)
    return tmp_path


def body_of(folder: Path, photo: str, **spec: Any) -> dict[str, Any]:
    path = folder / "photos.jsonl"
    path.write_text(json.dumps({"id": "d", "photo": photo, "name": "fox"}) + "\n")
    job = JobSpec(
        endpoint="/v1/embeddings", model="m", image_fields=["photo"], max_bad_rows=1, **spec
    )
    (row,) = open_source(path, job, ProducerSettings()).documents({})
    assert isinstance(row, Document), row
    body: dict[str, Any] = json.loads(row.body)
    return body


def test_an_image_is_a_chat_that_is_embedded(folder: Path) -> None:
    """As vLLM has it: the image, and the prompt behind it where there is one."""
    image = {"type": "image_url", "image_url": {"url": DATA}}
    assert body_of(folder, "a.png", params={"dimensions": 64}) == {
        "model": "m",
        "dimensions": 64,
        "messages": [{"role": "user", "content": [image]}],
    }
    with_text = body_of(folder, "a.png", prompt="Represent the {name}.")
    text = {"type": "text", "text": "Represent the fox."}
    assert with_text["messages"] == [{"role": "user", "content": [image, text]}]


def test_texts_are_embedded_as_before(folder: Path) -> None:
    """A job without a column of images sends `input`."""
    path = folder / "texts.jsonl"
    path.write_text('{"id": "d", "text": "a fox"}\n')
    (row,) = open_source(
        path, JobSpec(endpoint="/v1/embeddings", model="m", prompt="{text}"), ProducerSettings()
    ).documents({})
    assert isinstance(row, Document)
    assert json.loads(row.body) == {"model": "m", "input": "a fox"}


def test_equal_images_make_equal_requests(folder: Path) -> None:
    """By their content, whatever their names are: sent once with `dedup`."""
    assert body_of(folder, "a.png") == body_of(folder, "b.png")
    assert answers_alike("/v1/embeddings", body_of(folder, "a.png"))


@pytest.mark.parametrize("photo", ["gone.png", "/etc/hostname", "photos.jsonl"])
def test_what_is_no_image_is_a_bad_row(photo: str, folder: Path) -> None:
    """As in a chat: nothing is sent."""
    path = folder / "photos.jsonl"
    path.write_text(json.dumps({"id": "d", "photo": photo}) + "\n")
    job = JobSpec(endpoint="/v1/embeddings", model="m", image_fields=["photo"])
    (row,) = open_source(path, job, ProducerSettings()).documents({})
    assert isinstance(row, BadRow)


def test_sounds_are_not_embedded(folder: Path) -> None:
    """No server takes them there."""
    job = JobSpec(endpoint="/v1/embeddings", model="m", audio_fields=["photo"])
    path = folder / "photos.jsonl"
    path.write_text('{"id": "d", "photo": "a.png"}\n')
    with pytest.raises(SpecError) as refused:
        open_source(path, job, ProducerSettings())
    assert refused.value.problems[0].pointer == "/audio_fields"

"""What documents may bring besides text, and what is refused before anything is decoded.

No engine is needed."""

from __future__ import annotations

import asyncio
import gc
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_workers.lanes.gpu.engine.engines import EngineCall, RequestRefused
from penstock_workers.lanes.gpu.requests import media
from penstock_workers.lanes.gpu.requests.media import Media, MediaMemory
from penstock_workers.lanes.gpu.settings import GpuSettings

FIELD = "messages[0].content[1]"


def renderer(**limits: int) -> Any:
    """As vLLM's says what its model takes."""
    processor = SimpleNamespace(info=SimpleNamespace(allowed_mm_limits=limits)) if limits else None
    return SimpleNamespace(
        mm_processor=processor, model_config=SimpleNamespace(multimodal_config=None)
    )


def image(url: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url} | more}


def data(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"


def refused(part: Any, taken: Any = None, **settings: Any) -> str:
    reader = Media(GpuSettings(model="m", **settings), taken or renderer(image=9))
    with pytest.raises(RequestRefused) as caught:
        reader.part(part, FIELD, reader.allowance())
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "https://example.com/cat.png",
        "HTTP://localhost/",
        "ftp://example.com/cat.png",
        "//example.com/cat.png",
        "/etc/passwd",
    ],
)
def test_an_address_of_a_document_is_never_fetched(url: str) -> None:
    """Refused by name, with what to send instead."""
    said = refused(image(url))
    assert said.startswith(f"{FIELD}.image_url is '{url[:20]}")
    assert "a worker fetches no address that a document names" in said


def test_no_file_is_read_unless_the_operator_names_a_folder() -> None:
    """Whatever the document's address is, and the error says which setting allows it."""
    assert "gpu.media_folder, which is not set" in refused(image("file:///etc/passwd"))


@pytest.mark.parametrize(
    "url",
    [
        "file://{folder}/../secret.png",
        "file://{folder}/link.png",
        "file:///etc/passwd",
        "file://otherhost{folder}/cat.png",
        "file://{folder}",
        "file://{folder}/missing.png",
        "file://{folder}/%2e%2e/secret.png",
        "file://{folder}/cat%00.png",
        "file:cat.png",
    ],
)
def test_only_files_of_that_folder_are_read(tmp_path: Path, url: str) -> None:
    """No way leads out of it, and the error does not tell which files there are."""
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "cat.png").write_bytes(b"cat")
    said = refused(image(url.format(folder=folder)), media_folder=str(folder))
    assert "no file in gpu.media_folder that can be read" in said
    assert "secret" not in said.partition(": no file")[2]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (image(None), "image_url is"),
        ({"type": "image_url"}, "image_url is None"),
        (image("data:image/png,abc"), "give data:image/…;base64,…"),
        (image("data:text/plain;base64,YWJj"), "give data:image/…;base64,…"),
        (image("data:image/png;base64,"), "give base64"),
        (image("data:image/png;base64,@@@@"), "is no base64"),
        (
            image(data(b"x" * 100)),
            "has 100 bytes, and an item's images and sounds may have 99 together",
        ),
        (image(data(b"x"), detail="low"), "image_url.detail"),
        ({"type": "image_pil", "image_pil": "x"}, "this model takes text, image only"),
        (
            {"type": "image_embeds", "image_embeds": "x"},
            "'image_embeds', and this model takes text, image only",
        ),
        ({"type": "video_url", "video_url": {"url": "x"}}, "'video_url'"),
        (
            {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}},
            "'input_audio'",
        ),
        ({"type": ["image_url"]}, "takes text, image only"),
        ({"image_url": {"url": "x"}, "uuid": "another document's"}, "takes text, image only"),
        ("text", "'text'"),
        ({"type": "text", "text": 3}, ".text is 3: give a text"),
    ],
)
def test_what_is_no_image_of_that_kind_is_refused_by_its_place(part: Any, words: str) -> None:
    """Before anything is decoded: wrong types, sizes, and parts by which vLLM would take what it
    should not."""
    said = refused(part, media_bytes_max=99)
    assert said.startswith(FIELD)
    assert words in said


def test_limits_count_all_of_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second image is one too many, or too large beside the first; another item begins anew."""
    monkeypatch.setattr(
        Media,
        "_image",
        lambda self, part, field, left: self._content(
            part["image_url"]["url"], "image", field, left
        ),
    )
    part = image(data(b"x" * 60))
    few = Media(GpuSettings(model="m", media_items_max=1), renderer(image=9))
    small = Media(GpuSettings(model="m", media_bytes_max=100), renderer(image=9))
    for reader, words in ((few, "gpu.media_items_max"), (small, "gpu.media_bytes_max")):
        left = reader.allowance()
        reader.part(part, FIELD, left)
        with pytest.raises(RequestRefused, match=words):
            reader.part(part, FIELD, left)
        reader.part(part, FIELD, reader.allowance())


def test_a_model_of_text_says_so() -> None:
    """An image for a model without eyes is that item's failure, by name."""
    assert "'image_url', and this model takes text only" in refused(image(data(b"x")), renderer())


@pytest.mark.parametrize("kind", ["input_audio", "audio_url"])
def test_sounds_are_handed_to_vllm_whole(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As content, never as an address; vLLM decodes them with its own limits."""
    monkeypatch.setattr(media, "find_spec", lambda name: object() if name == "soundfile" else None)
    given = {"data": b64encode(b"RIFF").decode(), "format": "wav"}
    part = {
        "type": kind,
        kind: given if kind == "input_audio" else {"url": data(b"RIFF", "audio/wav")},
    }
    reader = Media(GpuSettings(model="m"), renderer(audio=1))
    read = reader.part(part, FIELD, reader.allowance())
    assert read == {"type": "audio_url", "audio_url": {"url": data(b"RIFF", "audio/wav")}}
    evil = {"type": "input_audio", "input_audio": given | {"format": "wav,http://x"}}
    assert "the format is" in refused(evil, renderer(audio=1))
    remote = {"type": "audio_url", "audio_url": {"url": "http://example.com/a.wav"}}
    assert "fetches no address" in refused(remote, renderer(audio=1))


def test_a_worker_that_cannot_read_sounds_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model would take them; the package that decodes them is missing."""
    monkeypatch.setattr(media, "find_spec", lambda _name: None)
    part = {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}}
    assert "pip install 'vllm[audio]'" in refused(part, renderer(audio=1))


def test_a_relative_folder_stops_the_start() -> None:
    """Where it is must not depend on where the worker was started."""
    with pytest.raises(ValueError, match="media_folder: 'images' is relative"):
        GpuSettings(model="m", media_folder="images")


async def test_decoded_images_wait_for_memory() -> None:
    """While calls hold as much as they may, no other is decoded; one that is forgotten makes room,
    however it ended."""
    memory = MediaMemory(100, at_once=1)
    call = EngineCall("a", [1], None, media_bytes=100)
    async with memory.turn():
        memory.hold(call)
    entered = asyncio.Event()

    async def another() -> None:
        async with memory.turn():
            entered.set()

    waiting = asyncio.create_task(another())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not entered.is_set()
    del call
    gc.collect()
    await asyncio.wait_for(waiting, 5)
    assert memory.held == 0

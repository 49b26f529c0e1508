"""Images in chats with a real engine and a tiny model that sees: what is read, what is refused, and
what it counts as."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engines.tiny_model import IMAGE, IMAGE_TOKENS

from penstock_workers.item.answer import Answer
from penstock_workers.item.failures import Failure, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

CONTEXT = 1024
PIXELS = 200 * 200
BYTES = 200_000
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lane(tiny_seer: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GpuLane]:
    folder = tmp_path_factory.mktemp("images")
    (folder / "red.png").write_bytes(picture("red"))
    engine = {
        "max_model_len": CONTEXT,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "gpu_memory_utilization": 0.5,
    }
    gpu = GpuSettings(
        model=str(tiny_seer),
        in_process=True,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        engine=engine,
        media_items_max=3,
        media_bytes_max=BYTES,
        image_pixels_max=PIXELS,
        media_memory_bytes=30_000,
        media_folder=str(folder),
    )
    hosted = GpuLane(WorkerSettings(lane="gpu", gpu=gpu), give_up=pytest.fail)
    await hosted.start()
    yield hosted
    await hosted.close()


def picture(
    colour: str, size: tuple[int, int] = (40, 30), kind: str = "PNG", mode: str = "RGB"
) -> bytes:
    made = BytesIO()
    import_module("PIL.Image").new(mode, size, colour).save(made, kind)
    return made.getvalue()


def seen(content: bytes, kind: str = "png") -> dict[str, Any]:
    url = f"data:image/{kind};base64,{b64encode(content).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts: Any, **fields: Any) -> Request:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
    }
    on_overflow = fields.pop("on_overflow", "fail")
    encoded = json.dumps(body | fields).encode()
    return Request(
        "job:doc", "default", "/v1/chat/completions", encoded, 60.0, on_overflow=on_overflow
    )


async def inferred(lane: GpuLane, asked: Request) -> tuple[Prepared, dict[str, Any]]:
    prepared = await lane.prepare(asked)
    assert prepared.refused is None, prepared.refused
    place = await lane.queue.enter(prepared.tokens)
    try:
        answer = await lane.infer(prepared)
    finally:
        lane.queue.leave(place)
    assert isinstance(answer, Answer), answer
    return prepared, json.loads(answer.body)


async def refusal(lane: GpuLane, asked: Request) -> Failure:
    prepared = await lane.prepare(asked)
    assert prepared.refused is not None, "it was taken"
    named = name_failure(prepared.refused, 0.0)
    assert isinstance(named, Failure)
    return named


async def test_images_count_as_the_engine_counts_them(lane: GpuLane) -> None:
    """Each has its tokens in the prompt, in the usage and in what is reserved in the engine's
    memory."""
    _, none = await inferred(lane, chat("What is it?"))
    one_call, one = await inferred(lane, chat("What is it?", seen(picture("red"))))
    _, two = await inferred(lane, chat("What is it?", seen(picture("red")), seen(picture("blue"))))
    lengths = [answer["usage"]["prompt_tokens"] for answer in (none, one, two)]
    assert [length - lengths[0] for length in lengths] == [0, IMAGE_TOKENS, 2 * IMAGE_TOKENS]
    assert one_call.tokens == lengths[1] + 4


async def test_another_image_is_another_prompt(lane: GpuLane) -> None:
    """The same image and text are found in the prefix cache; another image before the same text is
    not."""
    text = "import os, sys; " * 60
    await inferred(lane, chat(seen(picture("red")), text))
    _, again = await inferred(lane, chat(seen(picture("red")), text))
    _, other = await inferred(lane, chat(seen(picture("green")), text))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("PNG", "RGBA"),
        ("JPEG", "L"),
        ("WEBP", "RGB"),
        ("GIF", "P"),
        ("BMP", "RGB"),
        ("PNG", "I;16"),
    ],
)
async def test_the_usual_formats_are_read(lane: GpuLane, kind: str, mode: str) -> None:
    """Whatever their colours."""
    made = BytesIO()
    import_module("PIL.Image").new(mode, (20, 50)).save(made, kind)
    _, answer = await inferred(lane, chat("What?", seen(made.getvalue(), kind.lower())))
    assert answer["usage"]["completion_tokens"] == 4


async def test_a_file_of_the_operators_folder_is_read(lane: GpuLane) -> None:
    """By the address that the document names, and as the same image sent whole."""
    folder = lane._settings.media_folder
    by_name = {"type": "image_url", "image_url": {"url": f"file://{folder}/red.png"}}
    named, _ = await inferred(lane, chat("What?", by_name))
    sent, _ = await inferred(lane, chat("What?", seen(picture("red"))))
    assert named.input.rendered["mm_hashes"] == sent.input.rendered["mm_hashes"]


def bomb() -> bytes:
    """A PNG of some kilobytes that would become a hundred million pixels."""
    rows = zlib.compress(b"\0" * (10_000 * 1_251), 9)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 10_000, 10_000, 1, 0, 0, 0, 0)),
        (b"IDAT", rows),
        (b"IEND", b""),
    )
    made = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


async def test_a_hostile_image_costs_its_own_item_only(lane: GpuLane) -> None:
    """Cut off, of another kind, a bomb, too large, too many, or elsewhere: refused by its place;
    the engine goes on."""
    whole = picture("red", (150, 150))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    hostile = {
        "no image that can be read": [seen(whole[: len(whole) // 2])],
        "10000 x 10000 pixels": [seen(bomb())],
        "gpu.image_pixels_max": [seen(whole), seen(whole)],
        "gpu.media_bytes_max": [seen(b"x" * (BYTES + 1))],
        "gpu.media_items_max": [seen(picture("red"))] * 4,
        "fetches no address": [
            {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/cat.png"}}
        ],
        "takes text, image only": [
            {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}}
        ],
        "PNG, JPEG, WEBP, GIF and BMP can be read": [seen(postscript)],
        "can be read": [seen(b"MZ\x90not an image")],
    }
    for words, parts in hostile.items():
        failure = await refusal(lane, chat("What?", *parts))
        assert failure.name == "bad_request"
        assert words in failure.detail, failure.detail
    enormous = chat(
        "What?",
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000_000}},
    )
    assert "gpu.media_bytes_max" in (await refusal(lane, enormous)).detail
    _, answer = await inferred(lane, chat("What?", seen(whole)))
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("text", [f"{IMAGE} {IMAGE}", f"what {IMAGE * 40}"])
async def test_words_that_stand_for_images_do_no_harm(lane: GpuLane, text: str) -> None:
    """A text that holds the model's own mark of an image is answered or refused, with an image
    beside it and without."""
    for asked in (chat(text), chat(text, seen(picture("red")))):
        prepared = await lane.prepare(asked)
        if prepared.refused is None:
            assert isinstance(await lane.infer(prepared), Answer)
    _, answer = await inferred(lane, chat("What?"))
    assert answer["usage"]["completion_tokens"] == 4


async def test_a_long_text_is_trimmed_beside_its_image(lane: GpuLane) -> None:
    """The text loses its end, and the image stays whole; without leave to trim it is an
    overflow."""
    parts = ("import os, sys; " * 500, seen(picture("red")))
    assert (await refusal(lane, chat(*parts))).name == "context_overflow"
    prepared, answer = await inferred(lane, chat(*parts, on_overflow="trim"))
    assert answer["usage"]["prompt_tokens"] <= CONTEXT - 4
    (placed,) = prepared.input.rendered["mm_placeholders"]["image"]
    assert placed.length == IMAGE_TOKENS


async def test_many_images_fit_a_small_memory(lane: GpuLane) -> None:
    """More than may be held at once: all are answered, and nothing is held in the end."""
    held = []

    async def one(number: int) -> int:
        prepared, answer = await inferred(
            lane,
            chat(f"{number}", seen(picture((number, 9, 9), (60, 60)))),  # type: ignore[arg-type]
        )
        held.append(lane._media.held)
        assert prepared.input.media_bytes > 0
        return int(answer["usage"]["prompt_tokens"])

    assert len(await asyncio.gather(*(one(number) for number in range(40)))) == 40
    assert max(held) <= 30_000 + 3 * 13_000  # the bound, and one for each thread that decodes
    for _ in range(3):
        await asyncio.sleep(0)
    assert lane._media.held == 0

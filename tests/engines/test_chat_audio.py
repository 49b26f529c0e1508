"""Sounds in chats with a real engine and a tiny model that hears: what is read, what is refused,
and what it counts as."""

from __future__ import annotations

import math
import struct
import wave
from array import array
from base64 import b64encode
from collections.abc import AsyncIterator
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engines.test_chat_images import chat, inferred, refusal
from engines.tiny_model import sound_tokens

from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

RATE = 16_000
LONGEST_S = 60  # of one sound, decoded: what vLLM's own setting says here
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lane(
    tiny_hearer: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GpuLane]:
    folder = tmp_path_factory.mktemp("sounds")
    (folder / "low.wav").write_bytes(tone(220))
    engine = {
        "max_model_len": 1024,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "gpu_memory_utilization": 0.5,
    }
    gpu = GpuSettings(
        model=str(tiny_hearer),
        in_process=True,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        engine=engine,
        media_items_max=3,
        media_bytes_max=3_000_000,
        media_folder=str(folder),
    )
    hosted = GpuLane(WorkerSettings(lane="gpu", gpu=gpu), give_up=pytest.fail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_MAX_AUDIO_DECODE_DURATION_S", str(LONGEST_S))
        await hosted.start()
        yield hosted
        await hosted.close()


def tone(hertz: float, seconds: float = 0.5, rate: int = RATE, channels: int = 1) -> bytes:
    """A WAV file."""
    made = BytesIO()
    samples = array("h")
    for number in range(round(seconds * rate)):
        samples.extend([round(8_000 * math.sin(2 * math.pi * hertz * number / rate))] * channels)
    with wave.open(made, "wb") as written:
        written.setparams((channels, 2, rate, 0, "NONE", "NONE"))
        written.writeframes(samples.tobytes())
    return made.getvalue()


def heard(content: bytes, kind: str = "wav") -> dict[str, Any]:
    return {
        "type": "input_audio",
        "input_audio": {"data": b64encode(content).decode(), "format": kind},
    }


async def test_sounds_count_as_the_engine_counts_them(lane: GpuLane) -> None:
    """Each has its tokens in the prompt, in the usage and in what is reserved in the engine's
    memory."""
    _, none = await inferred(lane, chat("What is it?"))
    one_call, one = await inferred(lane, chat("What is it?", heard(tone(220))))
    _, two = await inferred(lane, chat("What is it?", heard(tone(220)), heard(tone(440, 2.0))))
    lengths = [answer["usage"]["prompt_tokens"] for answer in (none, one, two)]
    wanted = [0, sound_tokens(0.5), sound_tokens(0.5) + sound_tokens(2.0)]
    assert [length - lengths[0] for length in lengths] == wanted
    assert one_call.tokens == lengths[1] + 4
    assert one_call.input.media_bytes > 0, "what it holds of the worker's memory is counted"


async def test_another_sound_is_another_prompt(lane: GpuLane) -> None:
    """The same sound and text are found in the prefix cache; another sound before the same text is
    not."""
    text = "import os, sys; " * 60
    await inferred(lane, chat(heard(tone(220)), text))
    _, again = await inferred(lane, chat(heard(tone(220)), text))
    _, other = await inferred(lane, chat(heard(tone(880)), text))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_sound_is_the_same_however_it_is_sent(lane: GpuLane) -> None:
    """Both of OpenAI's forms, and a file of the operator's folder by the address that the document
    names."""
    url = f"data:audio/wav;base64,{b64encode(tone(220)).decode()}"
    named = f"file://{lane._settings.media_folder}/low.wav"
    hashes = []
    for part in (
        heard(tone(220)),
        *({"type": "audio_url", "audio_url": {"url": one}} for one in (url, named)),
    ):
        prepared, _ = await inferred(lane, chat("What?", part))
        hashes.append(prepared.input.rendered["mm_hashes"])
    assert hashes == [hashes[0]] * 3


async def test_a_sound_of_two_channels_is_read(lane: GpuLane) -> None:
    """As one of a single channel."""
    _, one = await inferred(lane, chat("What?", heard(tone(220))))
    _, two = await inferred(lane, chat("What?", heard(tone(220, channels=2))))
    assert two["usage"] == one["usage"] | {
        "prompt_tokens_details": two["usage"]["prompt_tokens_details"]
    }


@pytest.mark.skipif(
    find_spec("torchaudio") is None,
    reason="vLLM resamples by torchaudio, whose CPU build PyPI has not",
)
@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (44_100, 2)])
async def test_sounds_of_other_rates_are_read(lane: GpuLane, rate: int, channels: int) -> None:
    """They are what the model takes, 16 kHz on one channel, before it hears them: so many tokens as
    such a one has."""
    _, none = await inferred(lane, chat("What?"))
    _, answer = await inferred(lane, chat("What?", heard(tone(220, 1.0, rate, channels))))
    assert answer["usage"]["prompt_tokens"] - none["usage"]["prompt_tokens"] == sound_tokens(1.0)


def with_rate(rate: int, seconds: float) -> bytes:
    """A file whose head gives another number of samples a second than it was made with."""
    whole = bytearray(tone(220, seconds))
    whole[24:28] = struct.pack("<I", rate)
    return bytes(whole)


async def test_a_hostile_sound_costs_its_own_item_only(lane: GpuLane) -> None:
    """No sound at all, an empty one, one that becomes hours, too large, too many, or elsewhere:
    refused; the engine goes on."""
    hostile = {
        "refuses these messages": [heard(b"RIFF is all there is")],
        "LibsndfileError": [heard(tone(220)[:30])],
        "too short": [heard(tone(220, 0.001))],
        "maximum allowed duration": [heard(with_rate(10, 1.0))],
        "gpu.media_bytes_max": [heard(b"x" * 3_000_001)],
        "gpu.media_items_max": [heard(tone(220))] * 4,
        "fetches no address": [
            {"type": "audio_url", "audio_url": {"url": "http://127.0.0.1:9/a.wav"}}
        ],
        "takes text, audio only": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}
        ],
    }
    for words, parts in hostile.items():
        failure = await refusal(lane, chat("What?", *parts))
        assert failure.name == "bad_request"
        assert words in failure.detail, (words, failure.detail)
    for rate in (1, 2**31):
        prepared = await lane.prepare(chat("What?", heard(with_rate(rate, 0.01))))
        assert prepared.refused is None or prepared.refused.status == 400
    _, answer = await inferred(lane, chat("What?", heard(tone(220))))
    assert answer["usage"]["completion_tokens"] == 4

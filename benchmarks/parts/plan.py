"""(p) What `penstock plan` and `--dry-run` say from a sample, beside the run itself: api with
limits, batch, embed.

The provider is simulated, with known latencies, limits and prices; the server that embeds is one of
this file, which embeds so many texts a second. Each run is a command of its own, and its time is
that of the command by the clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from benchmarks.harness.ground import folder
from benchmarks.harness.report import Report, Row

PENSTOCK: Final = (sys.executable, "-m", "penstock_cli")
WITHIN: Final = 0.15  # of what was measured
PRICES: Final = ("--usd-per-mtok-in", "100", "--usd-per-mtok-out", "400")
EMBED_SLOTS, EMBED_S = 4, 0.08  # of the played server: 50 documents a second
MODEL: Final = "played"


@dataclass(frozen=True)
class Case:
    """One job at one provider."""

    name: str
    documents: int
    sample: int
    provider: Sequence[str]  # flags of the simulator; none: the server that embeds
    flags: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_embedding(self) -> bool:
        return not self.provider


CASES: Final = (
    Case(
        "api, 900 requests a minute, 2 % errors",
        1_200,
        100,
        (
            "--rpm",
            "900",
            "--latency-ms",
            "400",
            "--latency-sigma",
            "0.6",
            "--error-rate",
            "0.02",
            "--seed",
            "5",
        ),
        ("--rpm", "900", "--workers", "1", *PRICES),
    ),
    Case(
        "batch, room for two batches at once",
        900,
        100,
        ("--batch-s", "15", "--batch-sigma", "0", "--batch-step-s", "0.5", "--seed", "5"),
        (
            "--lane",
            "batch",
            "--batch-max-requests",
            "100",
            "--batch-poll",
            "1s",
            "--workers",
            "1",
            *PRICES,
        ),
        {"PENSTOCK_PROVIDERS__DEFAULT__BATCH_ENQUEUED_TOKENS": "24000"},
    ),
    Case(
        f"embed, a server of {EMBED_SLOTS / EMBED_S:g} a second",
        3_000,
        250,
        (),
        ("--lane", "embed", "--workers", "1"),
        {"PENSTOCK_COST__USD_PER_GPU_HOUR": "3.6"},
    ),
)


def run(quick: bool) -> Report:
    rows: list[Row] = []
    for case in CASES[:1] if quick else CASES:
        with folder() as place:
            rows += _rows(case, place)
    return Report("(p) plan and --dry-run, from a sample, beside the run", rows)


def _rows(case: Case, place: Path) -> list[Row]:
    _write(place / "docs.jsonl", case.documents)
    with _provider(case) as url:
        flags = [*_job(case), "--base-url", url] if not case.is_embedding else _job(case)
        variables = {
            **case.variables,
            **({"PENSTOCK_EMBED__UPSTREAM_URL": url} if case.is_embedding else {}),
        }

        def penstock(*words: str) -> tuple[str, float]:
            return _penstock(place, variables, words)

        penstock(
            "run",
            "docs.jsonl",
            "--out",
            "trial",
            "--job",
            "j",
            "--sample",
            str(case.sample),
            *flags,
        )
        said, _ = penstock("run", "docs.jsonl", "--out", "trial", "--job", "j", "--dry-run", *flags)
        (sample,) = (place / "trial/.penstock/samples").glob("*.json")
        asked = [flag for flag in flags if flag not in ("--workers", "1")]
        from_job = [
            "--from-job",
            sample.stem,
            "--state",
            "trial/.penstock",
            "--workers",
            "1",
            "--json",
        ]
        planned, _ = penstock("plan", "docs.jsonl", *asked, *from_job)
        _, seconds = penstock("run", "docs.jsonl", "--out", "whole", "--job", "j", *flags)
    report = json.loads((place / "whole/report.json").read_text())
    lane = flags[flags.index("--lane") + 1] if "--lane" in flags else "api"
    (plan,) = [one for one in json.loads(planned)["lanes"] if one["lane"] == lane]
    return [
        _row(f"{case.name}: time, plan", plan["planned"]["seconds"], seconds, "s"),
        _row(f"{case.name}: time, --dry-run", _seconds(_line(said, "time")), seconds, "s"),
        _row(f"{case.name}: cost, plan", plan["cost_usd"], report["cost_usd"], "USD"),
        _row(f"{case.name}: cost, --dry-run", _usd(_line(said, "cost")), report["cost_usd"], "USD"),
    ]


def _row(what: str, said: float, measured: float, unit: str) -> Row:
    ratio = said / measured
    met = abs(ratio - 1) <= WITHIN
    return Row(
        what,
        f"{said:.4g} {unit}",
        f"{measured:.4g} {unit}",
        f"{ratio:.2f}x",
        f"within {WITHIN:.0%}",
        met,
    )


def _job(case: Case) -> list[str]:
    asks = ["--prompt", "{text}", "--model", MODEL]
    return (
        [*asks, *case.flags]
        if case.is_embedding
        else [*asks, "--param", "max_tokens=200", *case.flags]
    )


def _write(path: Path, documents: int) -> None:
    """Texts of lengths with a heavy tail."""
    luck = random.Random(4)
    words = (
        "the",
        "quota",
        "of",
        "a",
        "provider",
        "is",
        "shared",
        "by",
        "all",
        "workers",
        "and",
        "each",
        "call",
        "waits",
    )
    with path.open("w") as file:
        for number in range(documents):
            text = " ".join(luck.choices(words, k=max(3, round(luck.lognormvariate(3.8, 0.8)))))
            file.write(json.dumps({"id": f"d{number}", "text": text}) + "\n")


def _penstock(place: Path, variables: Mapping[str, str], words: Sequence[str]) -> tuple[str, float]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
    } | dict(variables)
    began = time.monotonic()
    done = subprocess.run(
        [*PENSTOCK, *words],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode not in (0, 3):
        raise RuntimeError(
            f"penstock {' '.join(words)} ended with {done.returncode}:\n"
            f"{done.stdout}\n"
            f"{done.stderr}"
        )
    return done.stdout, time.monotonic() - began


def _line(said: str, name: str) -> str:
    return next(line for line in said.splitlines() if line.startswith(f"  {name} "))


_UNITS: Final = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}


def _seconds(line: str) -> float:
    about = line.partition("about ")[2].partition(" (")[0]
    return sum(
        float(number) * _UNITS[unit]
        for number, unit in re.findall(r"([\d.]+) (d|h|min|s)\b", about)
    )


def _usd(line: str) -> float:
    return float(line.partition("about $")[2].partition(" (")[0].replace(",", ""))


# -- who answers -----------------------------------------------------------------------------------


@contextmanager
def _provider(case: Case) -> Iterator[str]:
    if case.is_embedding:
        with _embeds() as url:
            yield url
        return
    prices = ("--usd-per-mtok-in", "100", "--usd-per-mtok-out", "400")
    command = [*PENSTOCK, "simulate", "--port", "0", *case.provider, *prices]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _embeds() -> Iterator[str]:
    """A server with vLLM's paths that embeds as fast as it says."""
    loop, ready, place = asyncio.new_event_loop(), threading.Event(), list[str]()

    async def serve() -> None:
        busy = asyncio.Semaphore(EMBED_SLOTS)

        async def embeddings(request: web.Request) -> web.Response:
            asked = await request.json()
            inputs = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
            async with busy:
                await asyncio.sleep(EMBED_S * len(inputs))
            return web.json_response(_vectors(inputs))

        async def models(_: web.Request) -> web.Response:
            return web.json_response(
                {"object": "list", "data": [{"id": MODEL, "max_model_len": 100_000}]}
            )

        async def health(_: web.Request) -> web.Response:
            return web.Response()

        app = web.Application(client_max_size=2**24)
        app.add_routes(
            [
                web.get("/health", health),
                web.get("/v1/models", models),
                web.post("/v1/embeddings", embeddings),
            ]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        place.append(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        ready.set()

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.create_task(serve())
        loop.run_forever()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield place[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


def _vectors(inputs: Sequence[str]) -> dict[str, Any]:
    tokens = sum(len(text.split()) for text in inputs)
    vector = "AACAPwAAAAAAAAAAAAAAAA=="  # 1, 0, 0, 0 as float32
    return {
        "object": "list",
        "model": MODEL,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "data": [
            {"object": "embedding", "index": at, "embedding": vector} for at in range(len(inputs))
        ],
    }

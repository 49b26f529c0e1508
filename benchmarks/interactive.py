"""Interactive traffic at a server that batch work shares: how late it is, with us and without.

`python -m benchmarks.interactive`: people ask a simulated vLLM at random times, one after another
and however late the answers are (an open loop). First alone, then beside a job, and then beside the
same job with a target for them (`interactive_ttft_s`). What is compared are times by the clock of
one run: of the callers, and documents per second of the job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.harness.ground import RunningSimulator, end_in_order, folder, simulator
from benchmarks.harness.report import Report, Row, show

PLACES: Final = 32  # requests that the server runs at once
FIRST_MS: Final = 60.0  # until the first token of a request that runs
TOKEN_MS: Final = 60.0  # a simulated answer has some 30 tokens at most
ASK_TOKENS, DOCUMENT_TOKENS = 4, 25  # of an answer
PER_SECOND: Final = 4.0  # callers
TARGET_S: Final = 0.5
SECONDS: Final = 60.0
SETTLE_S: Final = 15.0  # from the start of a job: a fleet finds its place at a server
GOAL_LATE: Final = 1.5  # times the target: p99, with the time of an answer that is alone
GOAL_KEPT: Final = 0.7  # of the documents per second without a target
SEED: Final = 30
PENSTOCK: Final = [sys.executable, "-m", "penstock_cli"]


@dataclass
class Asked:
    """The answers that people got: seconds since the start of the run, and how long each took."""

    answers: list[tuple[float, float]] = field(default_factory=list)

    def after(self, seconds: float) -> list[float]:
        return sorted(took for at, took in self.answers if at >= seconds)


def percentile(values: Sequence[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]


async def ask(url: str, seconds: float) -> Asked:
    """Ask at random times, on average ``PER_SECOND`` a second, and wait for every answer."""
    luck, asked, began = random.Random(SEED), Asked(), time.monotonic()
    body = {"model": "m", "max_tokens": ASK_TOKENS, "messages": [{"role": "user", "content": WORDS}]}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> None:
            at = time.monotonic()
            async with session.post(f"{url}/chat/completions", json=body) as answer:
                answer.raise_for_status()
                await answer.read()
            asked.answers.append((at - began, time.monotonic() - at))

        async with asyncio.TaskGroup() as callers:
            at = began
            while (at := at + luck.expovariate(PER_SECOND)) < began + seconds:
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                callers.create_task(one())
    return asked


WORDS: Final = " ".join(f"word{n}" for n in range(40))


@contextmanager
def job(place: Path, url: str, settings: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job that is longer than the benchmark; it is stopped at the end."""
    place.mkdir()
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    toml = ["[providers.default]", f'base_url = "{url}"', *lines]
    (place / "penstock.toml").write_text("\n".join(toml) + "\n")
    with (place / "documents.jsonl").open("w") as file:
        for number in range(20_000):
            file.write(json.dumps({"id": f"d{number}", "text": f"{number} {WORDS}"}) + "\n")
    options = ["--prompt", "{text}", "--model", "m", "--out", "out", "--no-progress"]
    options += [f"--param=max_tokens={DOCUMENT_TOKENS}"]
    with (place / "log").open("wb") as log:
        running = subprocess.Popen(
            [*PENSTOCK, "run", "documents.jsonl", *options], cwd=place, stdout=log, stderr=log
        )
        try:
            yield running
        finally:
            running.terminate()
            running.wait(60)


def answered(url: str) -> int:
    """Return how many calls the server has answered so far."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/stats") as answer:
        return int(json.load(answer)["by_status"].get("200", 0))


@dataclass(frozen=True)
class Run:
    """What people waited, and how many documents were answered per second, once settled."""

    waited: Sequence[float]
    per_second: float = 0.0

    def late(self, part: float) -> float:
        return percentile(self.waited, part)


def alone(seconds: float) -> Run:
    with server() as running:
        return Run(asyncio.run(ask(running.url, seconds)).after(0))


def beside(settings: Mapping[str, Any], seconds: float) -> Run:
    """Ask beside a job with these settings of its provider."""
    with folder() as place, server() as running:
        url = running.url
        said = {name: str(one).replace("URL", url.removesuffix("/v1")) if isinstance(one, str) else one for name, one in settings.items()}
        with job(place / "job", url, said):
            while not answered(url):
                time.sleep(0.1)
            async def both():
                asked = asyncio.create_task(ask(url, SETTLE_S + seconds))
                await asyncio.sleep(SETTLE_S)
                before, at = answered(url), time.monotonic()
                asks = asked
                await asyncio.sleep(seconds)
                done, took = answered(url) - before, time.monotonic() - at
                result = await asks
                people = sum(1 for when, took_s in result.answers if SETTLE_S <= when + took_s < SETTLE_S + seconds)
                return result, (done - people) / took
            result, rate = asyncio.run(both())
            return Run(result.after(SETTLE_S), rate), result


def server():
    return simulator(FIRST_MS, 0.3, "--like", "vllm", "--max-concurrency", str(PLACES), "--latency-ms-per-token", f"{TOKEN_MS:g}")


if __name__ == "__main__":
    end_in_order()
    secs = float(sys.argv[1])
    r = alone(secs)
    print("alone", r.late(.5), r.late(.95), r.late(.99), flush=True)
    for settings in ({}, {"metrics_url": "URL/metrics"}, {"metrics_url": "URL/metrics", "interactive_ttft_s": TARGET_S}):
        r, raw = beside(settings, secs)
        w = sorted(t for at, t in raw.answers if at < SETTLE_S)
        print(settings, r.late(.5), r.late(.95), r.late(.99), "docs/s", r.per_second, "during settle p99", percentile(w, .99), flush=True)

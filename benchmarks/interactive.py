"""(p) Interactive traffic at a server that batch work shares: how late it is, with us and without.

    python -m benchmarks.interactive [--quick]

People ask a simulated vLLM at random times, however late its answers are (an open loop): alone, then
beside a job, beside one that looks at the server's queue (`metrics_url`), and beside one with a
target for them (`interactive_ttft_s`). Times are the callers' own, from asking to the whole answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from benchmarks.harness.ground import RunningSimulator, end_in_order, folder, process, simulator
from benchmarks.harness.report import Report, Row, show
from benchmarks.harness.targets import judge

PLACES: Final = 32  # requests that the server runs at once
FIRST_MS: Final = 60.0  # until the first token of a request that runs
TOKEN_MS: Final = 60.0  # of each that follows
ASK_TOKENS, DOCUMENT_TOKENS = 4, 25  # of an answer; a simulated one has some 30 at most
PER_SECOND: Final = 4.0  # questions
TARGET_S: Final = 0.5
SECONDS, QUICK_SECONDS = 120.0, 40.0
SETTLE_S: Final = 20.0  # from the first document on: a fleet finds its place at a server
DOCUMENTS: Final = 20_000  # more than any run does
WORDS: Final = "word " * 40  # of a prompt, so that an answer is as long as it may be
SEED: Final = 30
LATE: Final = "questions beside a job with a target / alone, p95"
KEPT: Final = "documents per second with a target / without"


class Asked(NamedTuple):
    """One question: when it was asked, since the first, and how long its answer took."""

    at_s: float
    took_s: float


class Run(NamedTuple):
    """The questions of one run, once all has settled, and the documents beside them."""

    asked: Sequence[Asked]
    documents_per_s: float = 0.0

    def late(self, part: float) -> float:
        took = sorted(one.took_s for one in self.asked)
        return took[min(len(took) - 1, int(part * len(took)))]


async def ask(url: str, seconds: float) -> list[Asked]:
    """Ask at random times, on average ``PER_SECOND`` a second, and wait for every answer."""
    luck, asked, began = random.Random(SEED), list[Asked](), time.monotonic()
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": WORDS}],
        "max_tokens": ASK_TOKENS,
    }
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> None:
            at = time.monotonic()
            async with session.post(f"{url}/chat/completions", json=body) as answer:
                answer.raise_for_status()
                await answer.read()
            asked.append(Asked(at - began, time.monotonic() - at))

        async with asyncio.TaskGroup() as people:
            at = began
            while (at := at + luck.expovariate(PER_SECOND)) < began + seconds:
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                people.create_task(one())
    return asked


def alone(seconds: float) -> Run:
    with server() as running:
        return Run(asyncio.run(ask(running.url, seconds)))


def beside_a_job(settings: Mapping[str, Any], seconds: float) -> Run:
    """Ask beside a job whose provider has these settings; ``URL`` in them is the server's."""
    with folder() as place, server() as running:
        root = running.url.removesuffix("/v1")
        said = {"base_url": "URL/v1", **settings}
        lines = [f"{name} = {json.dumps(value)}" for name, value in said.items()]
        toml = "\n".join(["[providers.default]", *lines, ""]).replace("URL", root)
        (place / "penstock.toml").write_text(toml)
        with job(place):
            while not documents(root):
                time.sleep(0.1)
            return asyncio.run(_both(running.url, root, seconds))


async def _both(url: str, root: str, seconds: float) -> Run:
    people = asyncio.create_task(ask(url, SETTLE_S + seconds))
    await asyncio.sleep(SETTLE_S)
    before, since = await asyncio.to_thread(documents, root), time.monotonic()
    await asyncio.sleep(seconds)
    done, took = await asyncio.to_thread(documents, root) - before, time.monotonic() - since
    return Run([one for one in await people if one.at_s >= SETTLE_S], done / took)


def documents(root: str) -> int:
    """Return how many documents the server has answered: each is another request."""
    with urllib.request.urlopen(f"{root}/stats") as answer:
        return int(json.load(answer)["answered"]) - 1  # all questions are one


@contextmanager
def job(place: Path) -> Iterator[None]:
    """Run a job that is longer than the benchmark, and end it with the block."""
    with (place / "documents.jsonl").open("w") as file:
        for number in range(DOCUMENTS):
            file.write(json.dumps({"id": f"d{number}", "text": f"{number} {WORDS}"}) + "\n")
    options = ["--prompt", "{text}", "--model", "m", f"--param=max_tokens={DOCUMENT_TOKENS}"]
    command = [sys.executable, "-m", "penstock_cli", "run", str(place / "documents.jsonl")]
    command += [*options, "--out", str(place / "out"), "--no-progress"]
    variables = {"PENSTOCK_CONFIG": str(place / "penstock.toml")}
    with process(command, variables=variables, log=place / "log"):
        yield


def server() -> AbstractContextManager[RunningSimulator]:
    flags = ["--max-concurrency", str(PLACES), "--latency-ms-per-token", f"{TOKEN_MS:g}"]
    return simulator(FIRST_MS, 0.3, "--like", "vllm", *flags)


def run(quick: bool) -> Report:
    seconds = QUICK_SECONDS if quick else SECONDS
    people = alone(seconds)
    looks = {"metrics_url": "URL/metrics"}
    without = beside_a_job({}, seconds)
    beside = {
        "a job without a target": without,
        "a job that looks at the queue (`metrics_url`)": beside_a_job(looks, seconds),
        f"a job with `interactive_ttft_s = {TARGET_S:g}`": (
            last := beside_a_job({**looks, "interactive_ttft_s": TARGET_S}, seconds)
        ),
    }
    ratios = {
        LATE: last.late(0.95) / people.late(0.95),
        KEPT: last.documents_per_s / without.documents_per_s,
    }
    rows = [Row("questions alone: p50, p95, p99", _times(people))]
    for what, one in beside.items():
        ratio = (
            f"{one.late(0.95) / people.late(0.95):.2f}x; {one.late(0.99) / people.late(0.99):.2f}x"
        )
        row = Row(f"questions beside {what}", _times(one), _times(people), f"p95, p99: {ratio}")
        rows.append(row.judged(judge(LATE, ratios[LATE])) if one is last else row)
    for what, one in beside.items():
        kept = one.documents_per_s / without.documents_per_s
        row = Row(
            f"documents of {what}",
            f"{one.documents_per_s:.1f}/s",
            f"{without.documents_per_s:.1f}/s",
            f"{kept:.2f}x",
        )
        rows.append(row.judged(judge(KEPT, kept)) if one is last else row)
    notes = [
        f"a simulated vLLM with {PLACES} places; {PER_SECOND:g} questions a second with an answer "
        f"of {ASK_TOKENS} tokens, documents with {DOCUMENT_TOKENS}; {seconds:g} s each, from "
        f"{SETTLE_S:g} s after the first document on"
    ]
    return Report("interactive traffic beside a job", rows, notes, ratios)


def _times(run: Run) -> str:
    return ", ".join(f"{run.late(part):.2f} s" for part in (0.5, 0.95, 0.99))


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interactive", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="40 s each instead of two minutes")
    show(run(parser.parse_args().quick))


if __name__ == "__main__":
    main()

"""Measures the cost of documents with the provider's prompt cache, beside a plain loop.

`python -m benchmarks.prompt_cache`: jobs at the simulated provider with the prices of three models,
over a corpus in which 60 % of each prompt is shared with others and 20 % of the documents are
duplicates. Money only: it says nothing of time, and any machine will do. What previews say of such
jobs is held in `estimates.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.harness.ground import end_in_order, folder, simulator
from benchmarks.harness.report import Report, Row, show

DOCUMENTS: Final = 400
MANUALS: Final = 8  # each stands before so many documents, which lie apart in the file
SHARED_TOKENS, OWN_TOKENS, ANSWER_TOKENS = 3_000, 2_000, 16  # of a document
DUPLICATES: Final = 0.2
GOAL: Final = 0.25  # of a plain loop
AT_ONCE: Final = 16  # calls of the plain loop
LATENCY_MS: Final = 100.0
PENSTOCK: Final = [sys.executable, "-m", "penstock_cli"]
PROMPT: Final = "{manual} {text}"


@dataclass(frozen=True, eq=False)
class Model:
    """A model of a provider, with its prices in US dollars per million tokens."""

    name: str
    kind: str
    endpoint: str
    prices: Mapping[str, float]

    @property
    def flags(self) -> list[str]:
        cached = self.prices["cached_input"] / self.prices["input"]
        paid = {"in": self.prices["input"], "out": self.prices["output"]}
        words = [part for way, usd in paid.items() for part in (f"--usd-per-mtok-{way}", str(usd))]
        rent = str(self.prices.get("cache_hour", 0.0))
        return [*words, "--cached-price", str(cached), "--usd-per-mtok-hour", rent]

    def config(self, url: str) -> str:
        root = url if self.kind == "openai" else url.removesuffix("/v1")
        prices = "\n".join(f"{name} = {usd}" for name, usd in self.prices.items())
        tier = "" if self.kind == "anthropic" else "tiers = { flex = { discount = 0.5 } }\n"
        return (
            f'[providers.default]\nkind = "{self.kind}"\nbase_url = "{root}"\n'
            f'[providers.default.prices."{self.name}"]\n{prices}\nbatch_discount = 0.5\n{tier}'
        )


MINI: Final = Model(
    "gpt-5-mini",
    "openai",
    "/v1/chat/completions",
    {"input": 0.25, "cached_input": 0.025, "output": 2.0},
)
TERRA: Final = Model(
    "gpt-5.6-terra",
    "openai",
    "/v1/chat/completions",
    {"input": 2.0, "cached_input": 0.2, "cache_write": 2.5, "output": 12.0},
)
SONNET: Final = Model(
    "claude-sonnet-4-5",
    "anthropic",
    "/v1/messages",
    {
        "input": 3.0,
        "cached_input": 0.3,
        "cache_write": 3.75,
        "cache_write_hour": 6.0,
        "output": 15.0,
    },
)
FLASH: Final = Model(
    "gemini-2.5-flash",
    "gemini",
    "/v1beta/generateContent",
    {"input": 0.3, "cached_input": 0.03, "cache_hour": 1.0, "output": 2.5},
)

CACHED: Final = ("--prompt-cache", "on")
FLEX: Final = ("--tier", "flex")
BATCH: Final = ("--lane", "batch")
ONCE: Final = ("--dedup", "on")
WAYS: Final[Sequence[tuple[Model, Sequence[str]]]] = (
    (SONNET, (*CACHED, *BATCH)),
    (SONNET, (*CACHED, *BATCH, *ONCE)),
    (MINI, (*CACHED, *FLEX, *ONCE)),
    (TERRA, (*CACHED, *FLEX, *ONCE)),
)


class Ground:
    """One simulated provider with the prices of a model, and a folder for jobs."""

    def __init__(self, model: Model, url: str, place: Path) -> None:
        self.model, self._root, self._place = model, url.removesuffix("/v1"), place
        self._jobs = 0
        (place / "penstock.toml").write_text(model.config(url))

    def spent(self) -> float:
        """Return what the provider has charged since the last time, and begin anew."""
        with urllib.request.urlopen(f"{self._root}/stats") as answer:
            spent = float(json.load(answer)["spent_usd"])
        urllib.request.urlopen(f"{self._root}/reset", data=b"").close()
        return spent

    def run(self, source: Path, options: Sequence[str]) -> float:
        """Run a job, and return what it was charged."""
        self._jobs += 1
        out = self._place / f"out-{self._jobs}"
        self._penstock("run", source, *options, "--out", str(out), "--no-progress")
        report = json.loads((out / "report.json").read_text())
        if report["succeeded"] != report["total"]:
            raise SystemExit(f"{report['dead']} documents died: {report['dead_by_reason']}")
        spent = self.spent()
        if abs(spent - report["cost_usd"]) > 0.01 * spent:
            raise SystemExit(f"the report says {report['cost_usd']} USD, the provider {spent}")
        return spent

    def _penstock(self, command: str, source: Path, *options: str) -> str:
        model = self.model
        usual = ["--prompt", PROMPT, "--model", model.name, "--endpoint", model.endpoint]
        most = "maxOutputTokens" if model.kind == "gemini" else "max_tokens"
        params = [f"--param={most}={ANSWER_TOKENS}", "--param=temperature=0"]
        done = subprocess.run(
            [*PENSTOCK, command, str(source), *usual, *params, *options],
            cwd=self._place,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join([command, *options])}: {done.stdout}{done.stderr}")
        return done.stdout

    def plain_loop(self, source: Path) -> float:
        """Send all documents as a loop without Penstock does, and return what that was charged."""
        asyncio.run(self._all(list(_bodies(self.model, source))))
        return self.spent()

    async def _all(self, bodies: Sequence[dict[str, Any]]) -> None:
        room = asyncio.Semaphore(AT_ONCE)
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        async with aiohttp.ClientSession(self._root, headers=headers) as session:

            async def one(body: dict[str, Any]) -> None:
                async with room, session.post(self.model.endpoint, json=body) as answer:
                    answer.raise_for_status()
                    await answer.read()

            await asyncio.gather(*map(one, bodies))


def _bodies(model: Model, source: Path) -> Iterator[dict[str, Any]]:
    for line in source.read_text().splitlines():
        content = PROMPT.format_map(json.loads(line))
        message = {"role": "user", "content": content}
        yield {"model": model.name, "max_tokens": ANSWER_TOKENS, "messages": [message]}


def corpus(path: Path, duplicates: float) -> Path:
    """Write documents of which so many are duplicates."""
    luck = random.Random(30)

    def text(tokens: int) -> str:
        words = ("".join(luck.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(97))
        some = list(words)
        return " ".join(luck.choice(some) for _ in range(round(tokens / 2.5)))

    manuals = [text(SHARED_TOKENS) for _ in range(MANUALS)]
    own = [text(OWN_TOKENS) for _ in range(DOCUMENTS)]
    again = frozenset(luck.sample(range(MANUALS, DOCUMENTS), round(DOCUMENTS * duplicates)))
    originals = [at for at in range(DOCUMENTS) if at not in again]
    with path.open("w") as file:
        for at in range(DOCUMENTS):
            its = luck.choice(originals) if at in again else at
            row = {"id": f"d{at}", "manual": manuals[its % MANUALS], "text": own[its]}
            file.write(json.dumps(row) + "\n")
    return path


def measure() -> Report:
    rows = list[Row]()
    for model in dict.fromkeys(model for model, _ in WAYS):
        with folder() as place, simulator(LATENCY_MS, 0, "--batch-s", "1", *model.flags) as running:
            ground = Ground(model, running.url, place)
            rows += _beside_a_loop(ground, corpus(place / "documents.jsonl", DUPLICATES))
    notes = [
        f"{DOCUMENTS} documents of {SHARED_TOKENS + OWN_TOKENS:,} tokens, {SHARED_TOKENS:,} of them "
        f"one of {MANUALS} manuals; answers of {ANSWER_TOKENS} tokens; prices of each model as in "
        "prices.toml, batches and flex at half of them"
    ]
    return Report("the provider's prompt cache: money", rows, notes)


def _beside_a_loop(ground: Ground, source: Path) -> Iterator[Row]:
    ways = [options for model, options in WAYS if model is ground.model]
    if not ways:
        return
    loop = ground.plain_loop(source)
    yield Row(f"{ground.model.name}: a plain loop", f"{_each(loop)} a document")
    batch = ground.run(source, BATCH)
    yield Row(
        f"{ground.model.name}: its batches alone",
        f"{_each(batch)} a document",
        _each(loop),
        f"{batch / loop:.3f}x",
    )
    for options in ways:
        spent = ground.run(source, options)
        yield Row(
            f"{ground.model.name}, {' '.join(options)}",
            f"{_each(spent)} a document",
            f"{_each(loop)}; batches {_each(batch)}",
            f"{spent / loop:.3f}x; {spent / batch:.3f}x",
            f"<= {GOAL:g}x of the loop",
            spent <= GOAL * loop,
        )


def _each(usd: float) -> str:
    return f"{usd / DOCUMENTS * 1e6:,.0f} millionths of a dollar"


def main() -> None:
    end_in_order()
    argparse.ArgumentParser(
        prog="python -m benchmarks.prompt_cache", description=__doc__
    ).parse_args()
    show(measure())


if __name__ == "__main__":
    main()

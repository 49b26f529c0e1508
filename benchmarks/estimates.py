"""What `penstock preview` or a sample says that jobs cost, beside what they cost: 19 cases.

`python -m benchmarks.estimates`: jobs at the simulated provider, which counts tokens by a real
vocabulary (o200k_base) while Penstock guesses them by the script of each text. Tiktoken's file of
it lies in TIKTOKEN_CACHE_DIR, as only the simulator sees it. Money only: it says nothing of time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.ground import end_in_order, folder, simulator
from benchmarks.harness.report import Report, Row, show
from benchmarks.harness.texts import sentences
from benchmarks.prompt_cache import FLASH, LATENCY_MS, MINI, PENSTOCK, SONNET, TERRA, Model

ENCODING: Final = "o200k_base"
DOCUMENTS: Final = 400
MANUALS: Final = 8  # each stands before so many documents, which lie apart in the file
MANUAL_CHARS: Final = 12_000
OWN_CHARS: Final = (800, 6_000)  # of a document, evenly between them
ANSWER_TOKENS: Final = 16
UNSURE, REPEATS, FLEX_FULL = 0.3, 0.2, 0.3  # shares of documents, and of calls
SAMPLED: Final = 100
WITHIN: Final = 0.15  # of what was predicted
LARGE: Final = {"input": 1.25, "cached_input": 0.125, "output": 10.0}  # of gpt-5
NANO: Final = {"input": 0.05, "cached_input": 0.005, "output": 0.4}
SCHEMA: Final = {
    "type": "object",
    "properties": {"label": {"enum": ["sure", "unsure"]}},
    "required": ["label"],
}
CACHED, BATCH, FLEX = ("--prompt-cache", "on"), ("--lane", "batch"), ("--tier", "flex")
ROUTE: Final = ("--route", "lang=ja -> model=gpt-5", "--route", "lang=de -> model=gpt-5-nano")
DEADLINE_S, STEP_AT = 150, 0.4
BY_STEP: Final = ("--degrade", f"model=gpt-5-nano at {STEP_AT:.0%} of deadline")
BY_LABEL: Final = ("--response-schema", "schema.json", "--escalate", "label=unsure -> model=gpt-5")

Said = Mapping[str, Any]  # by a preview


def usual(said: Said) -> float:
    return float(said["cost_usd"])


def surely_read(said: Said) -> float:
    """Return the cost in batches where each beginning is written once, as the simulator has it."""
    return float(said["prompt_cache"]["least_usd"])


def half_by_step(said: Said) -> float:
    """Return the cost where the step comes at half of the budget, which is that of all documents."""
    return by_step(said, 0.5)


def by_deadline(said: Said) -> float:
    """Return the cost where the step comes when as many have begun as the limit lets begin."""
    [seconds] = [one["seconds"] for one in said["lanes"] if one["lane"] == "api"]
    return by_step(said, min(1.0, DEADLINE_S * STEP_AT / seconds))


def by_step(said: Said, before: float) -> float:
    """Return the cost where this share of documents begins before the step."""
    own, step = said["cost_usd"], said["degrade"][0]["cost_usd_all"]
    return float(own * before + step * (1 - before))


@dataclass(frozen=True, eq=False)
class Case:
    """A job, and how its cost is predicted: by its preview, or by a sample of its documents."""

    words: str
    model: Model
    options: Sequence[str]
    source: str = "own"
    predicted: Callable[[Said], float] | None = usual  # None: by the sample
    simulated: Sequence[str] = ()  # flags of the simulator
    is_sampled: bool = False  # the preview sees a sample that has run


CASES: Final[Sequence[Case]] = (
    Case("prompt cache", SONNET, CACHED, "shared"),
    Case("prompt cache in batches", SONNET, (*CACHED, *BATCH), "shared", surely_read),
    Case("prompt cache", MINI, CACHED, "shared"),
    Case("prompt cache in flex", MINI, (*CACHED, *FLEX), "shared"),
    Case("prompt cache in batches", MINI, (*CACHED, *BATCH), "shared"),
    Case("prompt cache", TERRA, CACHED, "shared"),
    Case("prompt cache", FLASH, CACHED, "shared"),
    Case("explicit caches", FLASH, ("--prompt-cache", "explicit"), "shared"),
    Case("routes over three models", MINI, ROUTE),
    Case("routes over three models in batches", MINI, (*ROUTE, *BATCH)),
    Case("a fifth repeated, in batches", MINI, ("--dedup", "on", *BATCH), "repeated"),
    Case("a fifth repeated, in flex", MINI, ("--dedup", "on", *FLEX), "repeated"),
    Case("flex, else standard", MINI, FLEX, "own", None, ("--flex-full-share", str(FLEX_FULL))),
    Case("escalate", MINI, BY_LABEL, "own", None),
    Case("escalate in batches", MINI, (*BY_LABEL, *BATCH), "own", None),
    Case(
        "degrade at half of the budget",
        MINI,
        ("--degrade", "model=gpt-5-nano at 50% of budget", "--rpm", "400"),
        "own",
        half_by_step,
    ),
    Case(
        "degrade at 40% of the deadline",
        MINI,
        (*BY_STEP, "--deadline", f"{DEADLINE_S}s", "--rpm", "200"),
        "own",
        by_deadline,
    ),
    Case("escalate, as a sample had it", MINI, BY_LABEL, "own", usual, is_sampled=True),
    Case(
        "escalate in batches, as a sample had it",
        MINI,
        (*BY_LABEL, *BATCH),
        "own",
        usual,
        is_sampled=True,
    ),
)


class Ground:
    """One simulated provider with the prices of a model, and a folder for jobs."""

    def __init__(self, case: Case, url: str, place: Path) -> None:
        self._case, self._place, self._root = case, place, url.removesuffix("/v1")
        more = {"gpt-5": LARGE, "gpt-5-nano": NANO} if case.model is MINI else {}
        tables = "".join(
            f'[providers.default.prices."{name}"]\n'
            + "".join(f"{what} = {usd}\n" for what, usd in prices.items())
            + "batch_discount = 0.5\n"
            for name, prices in more.items()
        )
        (place / "penstock.toml").write_text(case.model.config(url) + tables)
        (place / "schema.json").write_text(json.dumps(SCHEMA))

    def predicted(self, source: Path) -> tuple[float, Sequence[str]]:
        """Return what the job is said to cost, and its budget where it has one."""
        case, budget = self._case, tuple[str, ...]()
        if case.predicted is None or case.is_sampled:
            sample = self._report(source, *case.options, "--sample", str(SAMPLED))
            self._reset()
            if case.predicted is None:
                return sample["cost_usd"] * DOCUMENTS / sample["total"], ()
            state = str(self._place / "out-0" / ".penstock")
            return case.predicted(self._preview(source, *case.options, "--state", state)), ()
        if case.predicted is half_by_step:
            free = (*case.options, "--budget-usd", "1000")
            budget = ("--budget-usd", str(self._preview(source, *free)["cost_usd"]))
        return case.predicted(self._preview(source, *case.options, *budget)), budget

    def spent(self, source: Path, budget: Sequence[str]) -> float:
        """Return what the job was charged, as its report has it.

        The simulator has one price, so that it agrees where one model is asked."""
        report = self._report(source, *self._case.options, *budget)
        with urllib.request.urlopen(f"{self._root}/stats") as answer:
            spent = float(json.load(answer)["spent_usd"])
        is_one_model = not any("model=" in option for option in self._case.options)
        if is_one_model and abs(spent - report["cost_usd"]) > 0.01 * spent:
            raise SystemExit(f"the report says {report['cost_usd']} USD, the provider {spent}")
        return float(report["cost_usd"])

    def _reset(self) -> None:
        urllib.request.urlopen(f"{self._root}/reset", data=b"").close()

    def _preview(self, source: Path, *options: str) -> Said:
        said: Said = json.loads(self._penstock("preview", source, *options, "--json"))
        return said

    def _report(self, source: Path, *options: str) -> Said:
        out = self._place / f"out-{len(list(self._place.glob('out-*')))}"
        self._penstock("run", source, *options, "--out", str(out), "--no-progress")
        [found] = out.glob("**/report.json")  # that of a sample is in a folder of its own
        report: Said = json.loads(found.read_text())
        if report["succeeded"] != report["total"]:
            raise SystemExit(f"{report['dead']} documents died: {report['dead_by_reason']}")
        return report

    def _penstock(self, command: str, source: Path, *options: str) -> str:
        model = self._case.model
        prompt = "{manual}\n\n{text}" if self._case.source == "shared" else "{text}"
        most = "maxOutputTokens" if model.kind == "gemini" else "max_tokens"
        named = ["--prompt", prompt, "--model", model.name, "--endpoint", model.endpoint]
        params = [f"--param={most}={ANSWER_TOKENS}", "--param=temperature=0"]
        done = subprocess.run(
            [*PENSTOCK, command, str(source), *named, *params, *options],
            cwd=self._place,
            # tiktoken would count as the simulator does: its models' tokens are guessed here
            env={**os.environ, "TIKTOKEN_CACHE_DIR": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join([command, *options])}: {done.stdout}{done.stderr}")
        return done.stdout


def corpora(place: Path) -> None:
    """Write the documents: eight languages and JSON, of lengths that differ."""
    luck = random.Random(12)
    manuals = [sentences(luck, ("en", "de", "fr")[at % 3], MANUAL_CHARS) for at in range(MANUALS)]
    rows = list[dict[str, str]]()
    for at in range(DOCUMENTS):
        lang = luck.choice(("en", "en", "de", "fr", "es", "pl", "ru", "zh", "ja", "json"))
        sure = "unsure" if luck.random() < UNSURE else "sure"
        text = f"{sure} ticket {at}: {sentences(luck, lang, luck.randint(*OWN_CHARS))}"
        rows.append({"id": f"d{at}", "lang": lang, "text": text, "manual": manuals[at % MANUALS]})
    files = {"own": rows, "shared": rows, "repeated": list(rows)}
    for at in luck.sample(range(1, DOCUMENTS), round(DOCUMENTS * REPEATS)):
        files["repeated"][at] = {**rows[0 if at < 2 else at - 1], "id": f"d{at}"}
    for name, found in files.items():
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found)
        (place / f"{name}.jsonl").write_text(lines)


def measure(chosen: Sequence[Case]) -> Report:
    rows = list[Row]()
    with folder() as texts:
        corpora(texts)
        for case in chosen:
            flags = ("--encoding", ENCODING, "--batch-s", "1", *case.simulated, *case.model.flags)
            with folder() as place, simulator(LATENCY_MS, 0, *flags) as running:
                row = _row(case, Ground(case, running.url, place), texts)
            print(f"{row.what}: {row.ratio}", file=sys.stderr, flush=True)
            rows.append(row)
    notes = [
        f"{DOCUMENTS} documents of {OWN_CHARS[0]} to {OWN_CHARS[1]:,} characters in English, "
        "German, French, Spanish, Polish, Russian, Chinese, Japanese and JSON; the provider counts "
        f"by {ENCODING}, the preview by script; where it says so by a sample of {SAMPLED}"
    ]
    return Report("estimates beside what was spent", rows, notes)


def _row(case: Case, ground: Ground, texts: Path) -> Row:
    source = texts / f"{case.source}.jsonl"
    predicted, budget = ground.predicted(source)
    spent = ground.spent(source, budget)
    by = "sample" if case.predicted is None else "preview"
    return Row(
        f"{case.model.name}, {case.words}: spent beside the {by}'s prediction",
        f"{spent:.4f} USD",
        f"{predicted:.4f} USD",
        f"{spent / predicted:.3f}x",
        f"within {WITHIN:.0%}",
        abs(spent / predicted - 1) <= WITHIN,
    )


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimates", description=__doc__)
    parser.add_argument("--only", default="", help="cases with these words in their names")
    only = parser.parse_args().only
    show(measure([case for case in CASES if only in f"{case.model.name}, {case.words}"]))


if __name__ == "__main__":
    main()

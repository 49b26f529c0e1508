"""Nightly evals: the same labelled cases go to each model of a matrix, are scored, and start by
themselves every night.

    python examples/evals.py                          # a simulated provider answers: no key
    python examples/evals.py --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY
    --model gpt-5-mini gpt-5

The cases are docstrings of Python's standard library, and the right answers are known: whether each
documents a module, a class, a function or a method. With PENSTOCK_DATABASE_URL the jobs run in your
fleet, else on this machine.
"""

from __future__ import annotations

import contextlib
import json
import sys
import sysconfig
from datetime import date
from itertools import combinations
from math import comb
from pathlib import Path

from corpus import Record, documents
from provider import database_of, flags_of, wait_for

from penstock_producer import JobSpec, Producer, ScheduleExists

KINDS = ["module", "class", "function", "method"]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": KINDS}},
    "required": ["kind"],
    "additionalProperties": False,
}
NIGHTLY = "0 2 * * *"


def main() -> int:
    asked = flags_of(
        __doc__, "example-evals", docs=60, models=("sim-small", "sim-large")
    ).parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    cases = asked.out.absolute() / "cases.jsonl"
    right = write_cases(cases, asked.docs)
    with database_of(asked) as database, Producer(database_url=database) as producer:
        # the key has the day: a second run of this script on the same day finds its jobs, and pays
        # nothing
        jobs = {
            model: producer.submit(
                str(cases),
                spec_for(model),
                job_key=f"eval-{model}-{date.today()}",  # noqa: DTZ011
            )
            for model in asked.model
        }
        passed = {}
        for model, job in jobs.items():
            wait_for(producer, job.job_id)
            passed[model] = score(producer, job.job_id, right)
        every_night(producer, cases, asked.model)
    for model, ids in passed.items():
        print(f"{model}: {len(ids)} of {len(right)} right ({len(ids) / len(right):.0%})")
    for one, other in combinations(passed, 2):
        compare(one, passed[one], other, passed[other])
    (asked.out / "scores.json").write_text(
        json.dumps({model: len(ids) / len(right) for model, ids in passed.items()})
    )
    return 0


def spec_for(model: str) -> JobSpec:
    return JobSpec(
        model=model,
        prompt="Does this document a module, a class, a function or a method?\n\n{text}",
        response_schema=SCHEMA,
        params={"temperature": 0, "max_tokens": 30},
        priority="low",  # what users wait for goes first
    )


def write_cases(path: Path, limit: int) -> dict[str, str]:
    """As many of each kind; returns the right answers."""
    chosen: dict[str, list[Record]] = {kind: [] for kind in KINDS}
    for record in documents(Path(sysconfig.get_path("stdlib"))):
        if len(chosen[record["kind"]]) < limit // len(KINDS):
            chosen[record["kind"]].append(record)
        if all(len(of_kind) == limit // len(KINDS) for of_kind in chosen.values()):
            break
    cases = [record for of_kind in chosen.values() for record in of_kind]
    path.write_text("".join(json.dumps(record) + "\n" for record in cases))
    return {record["id"]: record["kind"] for record in cases}


def score(producer: Producer, job_id: str, right: dict[str, str]) -> set[str]:
    """The cases that were answered rightly; a dead letter is none of them."""
    said = {
        one.key.doc_id: json.loads(one.json()["choices"][0]["message"]["content"])
        for one in producer.results(job_id)
    }
    return {case for case, answer in said.items() if answer["kind"] == right[case]}


def compare(one: str, passed: set[str], other: str, passed_by_other: set[str]) -> None:
    """The cases on which two models differ, and by how much chance alone would explain that (an
    exact sign test)."""
    gained, lost = len(passed_by_other - passed), len(passed - passed_by_other)
    less, all_of = min(gained, lost), gained + lost
    chance = min(1.0, 2 * sum(comb(all_of, at) for at in range(less + 1)) / 2**all_of)
    print(f"{one} -> {other}: {gained} cases gained, {lost} lost, p = {chance:.2f}")


def every_night(producer: Producer, cases: Path, models: list[str]) -> None:
    for model in models:
        with contextlib.suppress(ScheduleExists):  # added by an earlier run of this script
            producer.schedules.add(
                f"eval-{model}", NIGHTLY, str(cases), spec_for(model), timezone="Europe/Berlin"
            )
    for schedule in producer.schedules.list():
        print(f"{schedule.name} starts at {NIGHTLY!r}")


if __name__ == "__main__":
    sys.exit(main())

"""Faults of the past, put back one at a time: the explorer must find each of them.

A fault is a patch below ``known_faults/``. Its head says what the fault is, where it was named,
which promise it breaks and what shows it. A seed finds it that fails with the patch and does not
fail without it. ``python -m tests.explore.known_faults`` tries all of them, or those whose names
are given, and prints the table of docs/faults.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(__file__).parent / "known_faults"
COPIED: Final = (
    *("penstock", "producer", "workers", "ratelimit", "ledger", "gateway", "cli", "simulate"),
    "tests/explore",
    "tests/harness",
)
FIELDS: Final = ("Fault", "Named", "Breaks", "Shown by")
SEEDS_MAX: Final = 1_000
"""Tried of each fault: some ten minutes of one core. By hand a hundred times as many are tried of
what has no fault put back, so what needs more than these would be found there all the same."""
NOT_YET: Final = frozenset(
    (
        "thawed-worker-acknowledges-for-its-successor",
        "cursor-before-publishing",
        "retry-that-comes-early-is-dropped",
        "old-copy-is-believed",
        "acknowledged-before-the-commit",
        "keys-of-a-purged-job",
        "publishing-into-a-redis-that-forgot",
        "missing-after-one-look",
        "replay-erases-money",
        "completed-over-a-replay",
        "purge-forgets-open-batches",
        "handed-over-batch-is-created",
        "settled-batch-keeps-its-remainders",
        "young-job-is-taken-for-ended",
        "rebuild-forgets-calls-under-way",
        "replay-after-a-loss-counts-anew",
        "refused-answers-are-free",
        "walk-that-failed-is-kept",
        "start-is-counted-at-each-try",
        "forgotten-while-it-is-rebuilt",
        "rebuilt-with-the-jobs-of-before",
        "job-of-an-old-copy-is-not-looked-up",
        "windows-of-ended-jobs-come-back",
        "late-attempts-of-a-purged-job-have-rows",
    )
)
"""What takes more than the 60 seeds, or the 30 to 40 of its theme, that were tried of each, by name.
``known_faults/README.md`` has the tests that find them."""
_FIELD: Final = re.compile(rf"^({'|'.join(FIELDS)}): ")


@dataclass(frozen=True)
class KnownFault:
    """A fault of the past."""

    path: Path
    told: dict[str, str]  # of its head, by field

    @property
    def name(self) -> str:
        return self.path.stem.partition("-")[2]

    def put_back(self, tree: Path) -> None:
        """Change the sources below ``tree`` to what they were."""
        subprocess.run(["git", "apply", str(self.path)], cwd=tree, check=True)


class Found(NamedTuple):
    """How a fault was found, or that it was not."""

    fault: KnownFault
    seeds: int  # tried
    seed: int | None
    invariant: str | None
    seconds: float


def known_faults(names: Sequence[str] = ()) -> list[KnownFault]:
    """Return all known faults, or those of which a name is a part."""
    paths = sorted(FOLDER.glob("*.patch"))
    every = [KnownFault(path, _told(path.read_text("utf-8"))) for path in paths]
    return [one for one in every if not names or any(name in one.path.stem for name in names)]


def search(fault: KnownFault, seeds: int = SEEDS_MAX, first: int = 0, step: int = 1) -> Found:
    """Try seeds until one finds the fault; with a ``step``, those of one theme."""
    began, asked = time.monotonic(), range(first, first + seeds * step, step)
    left = asked
    with _copied() as tree:
        fault.put_back(tree)
        while left:
            seed, invariant = _first_failure(tree, left)
            if seed is None:
                break
            tried = asked.index(seed) + 1
            if _first_failure(ROOT, range(seed, seed + 1))[0] is None:
                return Found(fault, tried, seed, invariant, time.monotonic() - began)
            left = asked[tried:]  # it fails without the fault, and says nothing of it
    return Found(fault, seeds, None, None, time.monotonic() - began)


def table(found: Sequence[Found]) -> str:
    """Return the table of docs/faults.md."""
    rows = [
        f"| {number} | {one.fault.told['Fault']} | {_how(one)} | {one.invariant or ''} | "
        f"{one.seconds:.0f} |"
        for number, one in enumerate(found, 1)
    ]
    return "\n".join(["| # | Fault | Seeds | Broken promise | s |", "|---|---|---|---|---|", *rows])


def main(arguments: list[str]) -> int:
    """Try the faults that are asked for; return 1 where one was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.explore.known_faults")
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="tried of each fault")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help="between two: 12 for one theme")
    asked = parser.parse_args(arguments)
    found = list[Found]()
    for fault in known_faults(asked.names):
        found.append(search(fault, asked.seeds, asked.first, asked.step))
        one = found[-1]
        print(
            f"{fault.path.stem}: {_how(one)} (seed {one.seed}) {one.invariant or ''} "
            f"{one.seconds:.0f} s",
            flush=True,
        )
    missed = [one for one in found if one.seed is None]
    print(table(found))
    print(f"{len(found) - len(missed)} of {len(found)} were found")
    return 1 if missed else 0


def _how(one: Found) -> str:
    return f"not in {one.seeds}" if one.seed is None else str(one.seeds)


def _told(text: str) -> dict[str, str]:
    told: dict[str, str] = {}
    field = ""
    for line in text.partition("\ndiff --git ")[0].splitlines():
        named = _FIELD.match(line)
        field = named[1] if named else field
        told[field] = f"{told.get(field, '')} {line[len(named[0]) :] if named else line}".strip()
    return {field: " ".join(words.split()) for field, words in told.items()}


@contextmanager
def _copied() -> Iterator[Path]:
    """Copy what the explorer needs of this repository."""
    folder = Path(tempfile.mkdtemp(prefix="known-fault-"))
    try:
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name)  # compiled, as it may be
        yield folder
    finally:
        shutil.rmtree(folder)


def _first_failure(tree: Path, seeds: range) -> tuple[int | None, str | None]:
    """Return the first of these seeds that fails in a tree, and what is broken there."""
    asked = f"{seeds.start}:{seeds[-1]}:{seeds.step}"
    command = [sys.executable, "-m", "tests.explore", "--seeds", asked]
    ended = subprocess.run(
        [*command, "--stop-at-first-failure", "--json"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode not in (0, 1) or not ended.stdout.strip():
        raise RuntimeError(
            f"the explorer has ended with {ended.returncode}: {ended.stderr[-2000:]}"
        )
    said = json.loads(ended.stdout.splitlines()[-1])
    return said["failed_seed"], said["invariant"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

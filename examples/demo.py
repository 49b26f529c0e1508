"""The fleet's main job on one machine: every public docstring of the Python standard library gets a
category.

Real documents, real Redis, real Celery workers, real HTTP; the provider is simulated (`penstock
simulate`), with limits that make pacing show and a few per cent of the faults that real providers
have. Press Ctrl-C in the middle and start it again: it goes on where it was. `make demo` runs this.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from provider import beside, started

HERE = Path(__file__).parent
JOB = "demo"
PROMPT = "Name the programming topic of this documentation in two words:\n\n{text}"

# What the simulated provider allows and how it misbehaves.
LIMITS = ["--rpm", "6000", "--tpm", "2000000"]
FAULTS = [
    "--throttle-rate",
    "0.003",
    "--retry-after-s",
    "0.5",
    "--error-rate",
    "0.02",
    "--drop-rate",
    "0.01",
    "--truncate-rate",
    "0.002",
    "--poison-rate",
    "0.004",
    "--latency-ms",
    "250",
    "--latency-sigma",
    "0.5",
    "--seed",
    "7",
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for documents, state and results"
    )
    parser.add_argument("--docs", type=int, default=3_000, help="how many docstrings to take")
    options = parser.parse_args()
    documents = gather_documents(options.out / f"documents-{options.docs}.jsonl", options.docs)
    simulated = ("simulate", "--port", "0", *LIMITS, *FAULTS)
    with started(*simulated, says="serving http://") as base_url:
        status = run_job(documents, options.out, base_url)
    if status < 0:
        print(f"\nThe run was ended by {signal.Signals(-status).name}.")
    if status == 130 or status < 0:
        print(
            "Run `make demo` again: it goes on, with a simulated provider of its own. "
            "`make demo-clean` forgets it."
        )
    elif status in (0, 3):
        say_what_next(options.out)
    if status < 0:
        return 1
    return 0 if status == 3 else status  # dead letters are part of the show


def gather_documents(path: Path, limit: int) -> Path:
    """Write the corpus once; a resumed job must read the same file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, HERE / "corpus.py", path, "--limit", str(limit)], check=True
        )
    return path


def run_job(documents: Path, out: Path, base_url: str) -> int:
    command = [
        "run",
        str(documents),
        "--out",
        str(out / "results"),
        "--job",
        JOB,
        "--base-url",
        base_url,
        "--model",
        "sim-small",
        "--prompt",
        PROMPT,
        "--param",
        "max_tokens=32",
        "--workers",
        "2",
        "--concurrency",
        "64",
        *LIMITS,
        "--usd-per-mtok-in",
        "0.15",
        "--usd-per-mtok-out",
        "0.60",
    ]
    # so that it gets each interrupt once, from here
    job = beside(*command)
    for number in (signal.SIGINT, signal.SIGTERM):
        # it drains, and a second one hurries it
        signal.signal(number, lambda number, _frame: job.send_signal(number))
    return job.wait()


def say_what_next(out: Path) -> None:
    state = f"--state {out / 'results' / '.penstock'}"
    print(f"""
Look around:
  .venv/bin/penstock dlq list {JOB} {state}
  .venv/bin/penstock dlq replay {JOB} {state}   # then `make demo` again runs what was replayed
  head -1 {out / "results" / "output.jsonl"}""")


if __name__ == "__main__":
    sys.exit(main())

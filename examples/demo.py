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

HERE = Path(__file__).parent
PENSTOCK = [sys.executable, "-m", "penstock_cli"]
JOB = "demo"
PROMPT = "Name the programming topic of this documentation in two words:\n\n{text}"

# What the simulated provider allows and how it misbehaves.
REQUESTS_PER_MINUTE = 6_000
TOKENS_PER_MINUTE = 2_000_000
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
    provider, base_url = start_provider()
    try:
        status = run_job(documents, options.out, base_url)
    finally:
        provider.terminate()
        provider.wait()
    if status == 130:
        print("\nRun `make demo` again: it resumes. `make demo-clean` forgets it.")
    elif status in (0, 3):
        say_what_next(options.out)
    return 0 if status == 3 else status  # dead letters are part of the show


def gather_documents(path: Path, limit: int) -> Path:
    """Write the corpus once; a resumed job must read the same file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, HERE / "corpus.py", path, "--limit", str(limit)], check=True
        )
    return path


def start_provider() -> tuple[subprocess.Popen[str], str]:
    """The simulated provider in a session of its own, so that Ctrl-C lets the workers finish their
    calls."""
    limits = ["--rpm", str(REQUESTS_PER_MINUTE), "--tpm", str(TOKENS_PER_MINUTE)]
    command = [*PENSTOCK, "simulate", "--port", "0", *limits, *FAULTS]
    provider = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert provider.stdout is not None
    line = provider.stdout.readline()
    url = next((word for word in line.split() if word.startswith("http://")), None)
    if url is None:
        raise SystemExit(f"the simulated provider did not start: {line!r}")
    return provider, url


def run_job(documents: Path, out: Path, base_url: str) -> int:
    command = [
        *PENSTOCK,
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
        "--rpm",
        str(REQUESTS_PER_MINUTE),
        "--tpm",
        str(TOKENS_PER_MINUTE),
        "--usd-per-mtok-in",
        "0.15",
        "--usd-per-mtok-out",
        "0.60",
    ]
    # so that it gets each interrupt once, from here
    job = subprocess.Popen(command, start_new_session=True)
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

"""What the examples share: their flags, and what they ask: a provider or a fleet of yours, or
simulated ones of this machine."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock_producer import JobState, Producer

PENSTOCK = [sys.executable, "-m", "penstock_cli"]
LOOK_S = 0.2
PR_SET_PDEATHSIG = 1  # what Linux calls: send me this signal when my parent has ended


def flags_of(
    text: str | None, out: str, *, docs: int, models: Sequence[str] = ("sim-small",)
) -> argparse.ArgumentParser:
    """The flags of every example; ``text`` is its docstring."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path(out), help=f"folder of everything that is written ({out})"
    )
    parser.add_argument(
        "--docs", type=int, default=docs, help=f"how many documents to take ({docs})"
    )
    parser.add_argument(
        "--base-url", help="the provider, e.g. https://api.openai.com/v1; left out: a simulated one"
    )
    parser.add_argument(
        "--api-key-env", help="the variable that holds its key, e.g. OPENAI_API_KEY"
    )
    parser.add_argument(
        "--model", nargs=len(models), default=list(models), help="what the provider calls the model"
    )
    return parser


@contextmanager
def provider_of(asked: argparse.Namespace) -> Iterator[list[str]]:
    """The flags of `penstock run` and `penstock serve` that name the provider; a simulated one ends
    with the ``with``."""
    if asked.base_url is not None:
        yield [
            "--base-url",
            asked.base_url,
            *(["--api-key-env", asked.api_key_env] if asked.api_key_env else []),
        ]
        return
    with started("simulate", "--port", "0", "--latency-ms", "20", says="serving http://") as url:
        yield ["--base-url", url]


@contextmanager
def serving(asked: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """`penstock serve` on this machine: the address of its doors, and its database, where a
    Producer submits."""
    state = asked.out.absolute() / "serving"
    with (
        provider_of(asked) as flags,
        started("serve", "--port", "0", "--state", str(state), *flags, says="serving on") as url,
    ):
        yield url, f"sqlite:///{state / 'penstock.db'}"


@contextmanager
def database_of(asked: argparse.Namespace) -> Iterator[str]:
    """The database of your fleet, where PENSTOCK_DATABASE_URL names it; else `penstock serve` is
    started beside the example."""
    named = os.environ.get("PENSTOCK_DATABASE_URL")
    if named is not None:
        yield named
        return
    with serving(asked) as (_, url):
        yield url


def beside(*words: str, stdout: int | None = None) -> subprocess.Popen[str]:
    """Start a `penstock` command in a session of its own: Ctrl-C reaches this program alone, which
    then ends it. Where this program is killed, the kernel ends it."""
    return subprocess.Popen(
        [*PENSTOCK, *words],
        stdout=stdout,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
    )


@contextmanager
def started(*words: str, says: str) -> Iterator[str]:
    """A `penstock` command that goes on; the address in the line in which it ``says`` that it is
    ready."""
    process = beside(*words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        ready = next((line for line in process.stdout if says in line), None)
        if ready is None:
            raise SystemExit(f"`penstock {words[0]}` did not start: exit status {process.wait()}")
        yield next(word for word in ready.split() if word.startswith("http://"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def run(*words: str) -> None:
    """`penstock run` with its progress on this terminal.

    Ends the program where it did not finish; dead letters are shown."""
    status = subprocess.run([*PENSTOCK, "run", *words], check=False).returncode
    if status not in (0, 3):
        raise SystemExit(status)


def wait_for(producer: Producer, job_id: str) -> None:
    """Until each document of the job has its outcome.

    Ends the program where the job cannot go on by itself."""
    while not (job := producer.status(job_id).job).state.final:
        if job.state is JobState.PAUSED:
            raise SystemExit(f"{job.job_key} is paused: {job.reason}")
        time.sleep(LOOK_S)
    counts = producer.status(job_id).counts
    print(f"{job.job_key}: {job.state}, {counts.succeeded} answers, {counts.dead} dead letters")

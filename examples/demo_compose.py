"""The compose file's demo: push real documents into an open job, as another service would, and
watch it to its end.

    python examples/demo_compose.py --docs 300        (with PENSTOCK_DATABASE_URL of a fleet that has workers)

The documents are docstrings of Python's standard library (corpus.py). They travel through the
database, so this needs no folder that the fleet could read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from penstock_ledger.model import JobState
from penstock_producer import JobSpec, Producer

LOOK_S = 2.0
ENDS = {JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED}
SPEC = JobSpec(
    model="sim-small",
    prompt="Name the topic of this documentation in at most three words.\n\n{text}",
    params={"max_tokens": 20},
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=300, help="documents to send")
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="seconds to wait for the job's end"
    )
    asked = parser.parse_args()
    with Producer() as producer:
        with producer.open_job(SPEC, job_key=f"demo-{time.time():.0f}") as job:
            for record in records(asked.docs):
                job.enqueue(record["id"], {"text": record["text"]})
            tell(f"{job.close()} documents are in job {job.job_id}")
        return watch(producer, job.job_id, until=time.monotonic() + asked.timeout)


def records(limit: int) -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        corpus = Path(__file__).with_name("corpus.py")
        subprocess.run(
            [sys.executable, corpus, path, "--limit", str(limit)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def watch(producer: Producer, job_id: str, *, until: float) -> int:
    began = time.monotonic()
    while (status := producer.status(job_id)).job.state not in ENDS:
        tell(f"{status.finished} of {status.job.total}, {status.counts.dead} dead letters")
        if time.monotonic() > until:
            tell(f"no end in sight: the job is {status.job.state}")
            return 1
        time.sleep(LOOK_S)
    counts, seconds = status.counts, time.monotonic() - began
    for result in islice(producer.results(job_id), 3):
        answer = json.loads(result.body or b"{}")["choices"][0]["message"]["content"]
        tell(f"{result.key.doc_id}: {answer}")
    tell(
        f"the job is {status.job.state}: {counts.succeeded} results, {counts.dead} dead letters, "
        f"{seconds:.0f} s"
    )
    return 0 if status.job.state is JobState.COMPLETED and counts.succeeded else 1


def tell(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

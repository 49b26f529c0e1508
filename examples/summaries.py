"""Summaries of long documents: each part is summarised (map), then the summaries of each document's
parts (reduce).

    python examples/summaries.py                      # a simulated provider answers: no key
    python examples/summaries.py --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY
    --model gpt-5-mini

The documents are chapters of Python's language reference, up to 60,000 characters long, as
`help("CLASSES")` shows them. Another service would push documents in the same way. With
PENSTOCK_DATABASE_URL the jobs run in your fleet, else on this machine.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pydoc_data.topics import topics

from provider import database_of, flags_of, wait_for

from penstock_producer import JobSpec, Producer

PART_CHARS = 6_000  # about 1,500 tokens: small enough for any model, large enough to hold a thought
# of the summaries of one document's parts; what is beyond is cut, and counted
TOGETHER_CHARS = 24_000
Documents = Mapping[str, Mapping[str, str]]  # by id: the columns of the prompt


def main() -> int:
    asked = flags_of(__doc__, "example-summaries", docs=10).parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    longest = sorted(topics, key=lambda name: len(topics[name]), reverse=True)[: asked.docs]
    parts = {
        f"{name}#{at:03}": {"text": part}
        for name in longest
        for at, part in enumerate(parts_of(topics[name]))
    }
    of_part = JobSpec(
        model=asked.model[0],
        prompt="Summarise this part of a longer text in three sentences.\n\n{text}",
        params={"max_tokens": 150},
    )
    of_document = JobSpec(
        model=asked.model[0],
        prompt=(
            "These are summaries of the parts of {title}, in order. Make one summary of five "
            "sentences of them.\n"
            "\n"
            "{parts}"
        ),
        truncate={"parts": TOGETHER_CHARS},
        params={"max_tokens": 300},
    )
    with database_of(asked) as database, Producer(database_url=database) as producer:
        mapped = answers(producer, "parts", of_part, parts)
        together: dict[str, list[str]] = defaultdict(list)
        for part in sorted(mapped):  # ids end in the part's number: its order
            together[part.partition("#")[0]].append(mapped[part])
        documents = {
            name: {"title": name, "parts": "\n".join(texts)} for name, texts in together.items()
        }
        reduced = answers(producer, "documents", of_document, documents)
    path = asked.out / "summaries.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "id": name,
                    "chars": len(topics[name]),
                    "parts": len(together[name]),
                    "summary": reduced[name],
                }
            )
            + "\n"
            for name in longest
            if name in reduced
        )
    )
    print(f"{len(parts)} parts of {len(longest)} documents became {len(reduced)} summaries: {path}")
    return 0


def parts_of(text: str) -> Iterator[str]:
    """Paragraphs together, as many as fit into a part; one that is longer than a part is one by
    itself."""
    part = ""
    for paragraph in text.split("\n\n"):
        if part and len(part) + len(paragraph) > PART_CHARS:
            yield part
            part = ""
        part += paragraph + "\n\n"
    yield part


def answers(producer: Producer, what: str, spec: JobSpec, documents: Documents) -> dict[str, str]:
    """Push documents into an open job, close it, wait, and read what each was answered.

    The key is made of the documents: where this program is started again, it finds the job with its
    answers.
    """
    digest = sha256(json.dumps([spec.model, documents]).encode()).hexdigest()[:12]
    job = producer.open_job(spec, job_key=f"summaries-{what}-{digest}")
    # else an earlier run of this program has closed it: all of them are there
    if job.job.total is None:
        for name, columns in documents.items():
            job.enqueue(name, columns)
        job.close()
    wait_for(producer, job.job_id)
    return {
        one.key.doc_id: one.json()["choices"][0]["message"]["content"].strip()
        for one in producer.results(job.job_id)
    }


if __name__ == "__main__":
    sys.exit(main())

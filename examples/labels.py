"""Labels for a dataset by two models: where they agree the label is taken, where they differ a
person decides.

    python examples/labels.py                         # `penstock serve` and a simulated provider, on this machine
    python examples/labels.py --door http://127.0.0.1:8080 --model gpt-5-mini gpt-5    # a `penstock serve` that runs

OpenAI's own client uploads a batch for each model and reads the answers, as it would at OpenAI;
only `base_url` differs. The texts are docstrings of Python's standard library.
"""

from __future__ import annotations

import csv
import json
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

from corpus import Record, documents
from openai import OpenAI
from provider import LOOK_S, flags_of, serving

LABELS = ["files", "network", "text", "numbers", "time", "concurrency", "other"]
QUESTION = f"Which topic is this documentation about, {', '.join(LABELS)}?\n\n"
FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "topic",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"topic": {"enum": LABELS}},
            "required": ["topic"],
            "additionalProperties": False,
        },
    },
}


def main() -> int:
    parser = flags_of(__doc__, "example-labels", docs=60, models=("sim-small", "sim-large"))
    parser.add_argument(
        "--door", help="where `penstock serve` runs already, e.g. http://127.0.0.1:8080"
    )
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    texts = list(islice(documents(Path(sysconfig.get_path("stdlib"))), asked.docs))
    with nullcontext((asked.door, "")) if asked.door else serving(asked) as (door, _):
        client = OpenAI(base_url=f"{door}/v1", api_key="unused", max_retries=5)
        batches = [begin(client, model, texts) for model in asked.model]
        first, second = (labels_of(client, batch) for batch in batches)
    both = [one for one in texts if one["id"] in first and one["id"] in second]
    agreed = [one for one in both if first[one["id"]] == second[one["id"]]]
    others = [one for one in texts if one not in agreed]  # those that a model gave no label, too
    with_labels = [[one["id"], first[one["id"]], one["text"]] for one in agreed]
    write(asked.out / "labels.csv", ["id", "label", "text"], with_labels)
    for_people = [
        [one["id"], first.get(one["id"], ""), second.get(one["id"], ""), "", one["text"]]
        for one in others
    ]
    write(asked.out / "disagreements.csv", ["id", *asked.model, "label", "text"], for_people)
    share = len(agreed) / len(both)
    print(
        f"{len(agreed)} of {len(both)} alike ({share:.0%}), kappa "
        f"{kappa(first, second, both, share):.2f}"
    )
    print(f"{len(others)} for a person to decide: {asked.out / 'disagreements.csv'}")
    return 0


def begin(client: OpenAI, model: str, texts: Sequence[Record]) -> str:
    """Upload the requests to one model, and create their batch."""
    lines = [
        {
            "custom_id": one["id"],
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": QUESTION + one["text"]}],
                "response_format": FORMAT,
            },
        }
        for one in texts
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=(f"{model}.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    ).id


def labels_of(client: OpenAI, batch_id: str) -> dict[str, str]:
    """Each text's label, once the batch has ended; a text in the batch's error file has none."""
    while (batch := client.batches.retrieve(batch_id)).status not in (
        "completed",
        "failed",
        "expired",
        "cancelled",
    ):
        time.sleep(LOOK_S)
    print(f"{batch.status}: {batch.request_counts}")
    if batch.output_file_id is None:
        raise SystemExit(f"no answers: {batch.errors}")
    answers = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    said = {
        one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in answers
    }
    return {name: json.loads(text)["topic"] for name, text in said.items()}


def kappa(
    first: Mapping[str, str], second: Mapping[str, str], both: Sequence[Record], share: float
) -> float:
    """Cohen's: agreement beyond what chance would give; 1 is full agreement, 0 is chance."""
    one, other = (
        Counter(first[record["id"]] for record in both),
        Counter(second[record["id"]] for record in both),
    )
    chance = sum(one[label] * other[label] for label in LABELS) / len(both) ** 2
    return 1.0 if chance == 1 else (share - chance) / (1 - chance)


def write(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])


if __name__ == "__main__":
    sys.exit(main())

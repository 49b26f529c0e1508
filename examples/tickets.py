"""Support tickets get a category, an urgency and a summary: `penstock run`, a JSON schema, and a
table of answers.

    python examples/tickets.py                        # a simulated provider answers: no key
    python examples/tickets.py --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY
    --model gpt-5-mini

The tickets are real complaints about software, and every machine has them: the notes XXX, FIXME and
TODO which the authors of Python's standard library left beside their code.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from provider import flags_of, provider_of, run

PROMPT = (
    "Sort this ticket for our support team, and say in one sentence what it asks for.\n\n{text}"
)
CATEGORIES = ["bug", "wish", "question", "documentation"]
SCHEMA = {
    "type": "object",
    "properties": {
        "category": {"enum": CATEGORIES},
        "urgency": {"enum": ["low", "normal", "high"]},
        "summary": {"type": "string"},
    },
    "required": ["category", "urgency", "summary"],
    # with all fields required: the subset in which providers keep a model to the schema
    "additionalProperties": False,
}
NOTE = re.compile(r"^[ \t]*# (?:XXX|FIXME|TODO)[ :].*(?:\n[ \t]*# .+)*", re.MULTILINE)


def main() -> int:
    asked = flags_of(__doc__, "example-tickets", docs=60).parse_args()
    source, schema, answers = (
        asked.out / "tickets.csv",
        asked.out / "schema.json",
        asked.out / "answers",
    )
    asked.out.mkdir(parents=True, exist_ok=True)
    write_tickets(source, asked.docs)
    schema.write_text(json.dumps(SCHEMA))
    with provider_of(asked) as provider:
        run(
            str(source),
            "--out",
            str(answers),
            "--job",
            "tickets",
            *provider,
            "--model",
            asked.model[0],
            "--prompt",
            PROMPT,
            "--id-field",
            "ticket_id",
            "--param",
            "max_tokens=120",
            "--response-schema",
            str(schema),
            "--output-format",
            "csv",
            "--escape-formulas",
        )
    show(answers / "output.csv")
    return 0


def write_tickets(path: Path, limit: int) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ticket_id", "text"])
        table.writerows(islice(notes(Path(sysconfig.get_path("stdlib"))), limit))


def notes(library: Path) -> Iterator[tuple[str, str]]:
    """Each note with its place: `argparse:1423`."""
    for file in sorted(library.glob("*.py")):
        text = file.read_text("utf-8", errors="replace")
        for found in NOTE.finditer(text):
            words = " ".join(line.strip().removeprefix("# ") for line in found[0].splitlines())
            yield f"{file.stem}:{text.count(chr(10), 0, found.start()) + 1}", words


def show(path: Path) -> None:
    """How many there are of each kind, and those that should be looked at first."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for category, number in Counter(
        row["category"] for row in rows if row["status"] == "succeeded"
    ).most_common():
        print(f"{number:6}  {category}")
    for row in [row for row in rows if row["urgency"] == "high"][:5]:
        print(f"  high  {row['ticket_id']}: {row['summary']}")
    print(f"the table: {path}")


if __name__ == "__main__":
    sys.exit(main())

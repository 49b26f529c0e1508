"""The JSON Schema of job spec files, in the package and in the docs.

To write both anew: python tests/harness/job_spec_schema.py"""

from __future__ import annotations

import json
from pathlib import Path

from penstock_producer.jobfile.fields import json_schema

ROOT = Path(__file__).parents[2]
NAME = "job-spec.schema.json"
PLACES = (ROOT / "producer/penstock_producer/jobfile" / NAME, ROOT / "docs" / NAME)


def text() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for place in PLACES:
        place.write_text(text(), "utf-8")

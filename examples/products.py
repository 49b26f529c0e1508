"""Product descriptions from a catalogue: a prompt over the columns of a CSV, and the products
with their descriptions as Parquet.

    python examples/products.py                       # a simulated provider answers: no key
    python examples/products.py --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY
    --model gpt-5-mini

The catalogue is real: some 400 products that are sold by the hour, with the texts which their maker
wrote for engineers. They come with boto3 (`pip install 'penstock[all]'`).
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from botocore.loaders import Loader
from provider import flags_of, provider_of, run
from pyarrow import parquet

PROMPT = """\
For our shop, write a title and two sentences about {{ name }}{% if code %} ({{ code }}){% endif %}, from what its maker says.

{{ text }}
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "description": {"type": "string"},
        "shelf": {"enum": ["compute", "storage", "data", "network", "security", "other"]},
    },
    "required": ["title", "description", "shelf"],
    "additionalProperties": False,
}
# characters of the maker's text; what is said behind them is rarely about the product
LONGEST = "text=2000"


def main() -> int:
    asked = flags_of(__doc__, "example-products", docs=40).parse_args()
    catalogue, answers = asked.out / "catalogue.csv", asked.out / "answers"
    prompt, schema = asked.out / "prompt.jinja", asked.out / "schema.json"
    asked.out.mkdir(parents=True, exist_ok=True)
    write_catalogue(catalogue, asked.docs)
    prompt.write_text(PROMPT)
    schema.write_text(json.dumps(SCHEMA))
    with provider_of(asked) as provider:
        run(
            str(catalogue),
            "--out",
            str(answers),
            "--job",
            "products",
            *provider,
            "--model",
            asked.model[0],
            "--template",
            "jinja",
            "--prompt-file",
            str(prompt),
            "--truncate",
            LONGEST,
            "--id-field",
            "sku",
            "--response-schema",
            str(schema),
            "--output-format",
            "parquet",
        )
    keep(answers / "output.parquet", asked.out / "shop.parquet")
    return 0


def write_catalogue(path: Path, limit: int) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sku", "name", "code", "text"])
        table.writerows(islice(products(), limit))


def products() -> Iterator[tuple[str, str, str, str]]:
    loader = Loader()
    for sku in loader.list_available_services("service-2"):
        model = loader.load_service_model(sku, "service-2")
        about = model["metadata"]
        if model.get("documentation"):
            yield (
                sku,
                about["serviceFullName"],
                about.get("serviceAbbreviation", ""),
                model["documentation"],
            )


def keep(answers: Path, out: Path) -> None:
    """Every product is there once, with its columns and the answer's; a product without an answer
    has `error_code`."""
    columns = ["sku", "name", "code", "text", "title", "description", "shelf"]
    shop = parquet.read_table(answers, columns=[*columns, "status", "error_code"]).sort_by("sku")
    parquet.write_table(shop, out)
    for row in shop.slice(0, 3).to_pylist():
        print(f"{row['sku']}: {row['title']} ({row['shelf']})")
    print(f"{shop.num_rows} products in {out}")


if __name__ == "__main__":
    sys.exit(main())

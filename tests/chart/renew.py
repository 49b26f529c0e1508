"""`make chart`: write the golden file, the README's table and what the schema says of values anew.

Look at the diff before you commit it."""

from __future__ import annotations

import json

from chart import golden, helm_library, values_schema, values_table
from chart.conftest import CHART, example


def main() -> None:
    values = (CHART / "values.yaml").read_text("utf-8")
    schema = CHART / "values.schema.json"
    completed = values_schema.completed(json.loads(schema.read_text("utf-8")), values)
    schema.write_text(values_schema.text(completed), "utf-8")
    golden.PATH.write_text(
        golden.text(helm_library.render(CHART, example(golden.EXAMPLE))), "utf-8"
    )
    readme = CHART / "README.md"
    readme.write_text(values_table.with_table(readme.read_text("utf-8"), values), "utf-8")


if __name__ == "__main__":
    main()

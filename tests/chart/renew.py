"""`make chart`: write the golden file and the README's table anew.

Look at the diff before you commit it."""

from __future__ import annotations

from chart import golden, helm_library, values_table
from chart.conftest import CHART, example


def main() -> None:
    golden.PATH.write_text(
        golden.text(helm_library.render(CHART, example(golden.EXAMPLE))), "utf-8"
    )
    readme = CHART / "README.md"
    values = (CHART / "values.yaml").read_text("utf-8")
    readme.write_text(values_table.with_table(readme.read_text("utf-8"), values), "utf-8")


if __name__ == "__main__":
    main()

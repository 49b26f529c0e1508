"""`python -m tools.monitoring.write`: everything that is made from the catalogue, written into a
checkout of the project.

`--check` writes nothing and fails when a file is not as it would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock_gateway.metrics import CATALOGUE as OF_DOORS
from penstock_gateway.metrics import DoorMetric
from penstock_workers.metrics.catalogue import CATALOGUE
from penstock_workers.metrics.samples import Metric
from tools.monitoring.alerts import RUNBOOK, rules_yaml, runbook
from tools.monitoring.dashboards import DASHBOARDS, dashboard_json

FILES: Final = "helm/penstock/files"
TABLE: Final = "docs/metrics.md"
BEGIN, END = "<!-- made by tools.monitoring.write: begin -->", "<!-- end -->"


def made_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Path and content of each file.

    Of documents only what stands between the marks is made. Raises ValueError."""
    yield root / FILES / "alerts.yaml", rules_yaml()
    for dashboard in DASHBOARDS:
        yield root / FILES / "dashboards" / f"{dashboard.uid}.json", dashboard_json(dashboard)
    yield root / TABLE, _between_marks(root / TABLE, table())
    yield root / RUNBOOK, _between_marks(root / RUNBOOK, runbook())


def table() -> str:
    lines = [
        "| metric | kind | labels | unit | reported by | what it is |",
        "|---|---|---|---|---|---|",
    ]
    metrics: tuple[Metric | DoorMetric, ...] = (*CATALOGUE, *OF_DOORS)
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(
            f"| `{metric}` | {metric.kind} | {labels} | {metric.unit} | {metric.source} | "
            f"{metric.help} |"
        )
    return "\n".join(lines) + "\n"


def _between_marks(path: Path, text: str) -> str:
    before, begin, rest = path.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{path} lacks the marks {BEGIN} and {END}: put them where the made part belongs"
        )
    return f"{before}{BEGIN}\n{text}{END}{after}"


def main() -> int:
    stale = [
        (path, text)
        for path, text in made_files(Path.cwd())
        if not path.exists() or path.read_text("utf-8") != text
    ]
    for path, text in stale:
        sys.stdout.write(f"{path}\n")
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())

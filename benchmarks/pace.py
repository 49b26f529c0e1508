"""(q) The shared quota against a provider that refuses whatever does not fit.

    python -m benchmarks.pace [--quick] [--only case,case] [--seconds 20]

Every process of a run imports this module again (spawn): it must stay as good as empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness.report import Report


def run(quick: bool) -> Report:
    """The cases of ``--quick`` in either length: all of them take a quarter of an hour and have
    their own command."""
    from benchmarks.pacing.command import report

    return report(quick)


def main() -> None:
    from benchmarks.pacing.command import main as command

    command()


if __name__ == "__main__":
    main()

"""What a job's options changed in its rows.

It is said wherever the job is shown, so that nothing is cut in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock_ledger.texts import SetOption, Text
from penstock_producer.accepting.estimates import CHARS_PER_TOKEN
from penstock_producer.reporting.text import count, counted, safe

__all__ = ["changes", "saved_tokens"]

if TYPE_CHECKING:
    from penstock_producer.rows import Tally


def saved_tokens(tally: Tally) -> int:
    """Estimate the tokens of the blanks that compression took out."""
    return round(tally.saved_chars / CHARS_PER_TOKEN)


def changes(rows_cut: Mapping[str, int], tokens_saved: int) -> Iterator[str]:
    """Yield a line for each kind of change; none where nothing was changed."""
    if rows_cut:
        cut = ", ".join(
            f"{safe(name)} in {counted(rows, 'row')}" for name, rows in rows_cut.items()
        )
        yield Text("cut by ", SetOption("truncate"), f": {cut}")
    if tokens_saved:
        yield Text(SetOption("compress_prompt"), f" saves about {count(tokens_saved)} tokens")

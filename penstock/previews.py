"""Says what a call would send and cost, before anything is paid."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.calls import prepared
from penstock.child import check_installed
from penstock.errors import BadCall, PenstockError

__all__ = ["Preview", "preview"]

PROBLEMS: Final = 100  # that are kept, of rows that cannot be used
SHOWN_CHARS: Final = 500  # of a request in a notebook


@dataclass(frozen=True, repr=False)
class Preview:
    """A preview of the requests, and of what they would cost."""

    requests: Sequence[Mapping[str, Any]]  # the first: doc_id, url, body, tokens_in, tokens_out
    rows: int
    documents: int  # rows that can be used
    problems: Sequence[str]  # the first of those that cannot
    refusal: str | None  # why a run of these would be refused
    tokens_in: int
    tokens_out: int
    tokens_out_capped: bool  # whether it is the most: every request has its max_tokens
    tokens_by: str  # what counts them
    # of the prompts alone, and with answers as long as they may be; None: no price is known
    cost_range_usd: tuple[float, float] | None

    @property
    def unusable(self) -> int:
        """Return how many rows would fail without being sent."""
        return self.rows - self.documents

    @property
    def cost_usd(self) -> float | None:
        """The upper end of the range."""
        return None if self.cost_range_usd is None else self.cost_range_usd[1]

    @property
    def _headline(self) -> str:
        costs = self.cost_range_usd
        cost = "unknown" if costs is None else f"${costs[0]:.4f} to ${costs[1]:.4f}"
        out = "at most" if self.tokens_out_capped else "perhaps"
        return (
            f"{self.documents:,} documents, {self.unusable:,} unusable rows, about "
            f"{self.tokens_in:,} tokens in, {out} {self.tokens_out:,} out, cost {cost}"
        )

    def __repr__(self) -> str:
        return f"<Preview: {self._headline}>"

    def _repr_html_(self) -> str:
        shown = "".join(
            f"<tr><td>{html.escape(one['doc_id'])}</td><td>{one['tokens_in']:,}</td><td><code>"
            f"{html.escape(_short(one['body']))}</code></td></tr>"
            for one in self.requests
        )
        notes = [*([] if self.refusal is None else [self.refusal]), *self.problems[:3]]
        return (
            f"<p><b>{html.escape(self._headline)}</b></p>"
            f"<table><tr><th>row</th><th>tokens in</th><th>request</th></tr>{shown}</table>"
            + "".join(f"<p>{html.escape(note)}</p>" for note in notes)
            + f"<p><small>tokens by {html.escape(self.tokens_by)}; nothing was called</small></p>"
        )


def preview(rows: Any, *, shown: int = 3, **options: Any) -> Preview:
    """Return the first requests of a call and what all of it would cost, without a call.

    ``rows`` and ``options`` are those of ``penstock.run``; it needs no key and leaves nothing
    behind. Raises BadCall and RunFailed.
    """
    check_installed()
    from penstock_cli.run.child import given_by, in_arguments
    from penstock_cli.run.preview import previewed

    options = {name: value for name, value in options.items() if name not in ("job", "state")}
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        call = prepared(rows, {**options, "state": folder})
        given, flags = given_by(call.source, call.options.job, call.options.provider)
        try:
            found, _ = previewed(given, flags, shown=shown)
        except PenstockError as error:
            raise BadCall(in_arguments(error)) from None
    refusal = found.refusal()
    told = found.to_json()
    costs = (found.prompts_usd, found.cost_usd)
    place = (call.source, "the rows" if call.held.ids is not None else call.source)
    return Preview(
        requests=told["requests"],
        rows=told["rows"],
        documents=told["documents"],
        problems=[str(row.text).replace(*place) for row in found.refused[:PROBLEMS]],
        refusal=None if refusal is None else in_arguments(refusal),
        tokens_in=told["tokens_in"],
        tokens_out=told["tokens_out"],
        tokens_out_capped=told["tokens_out_capped"],
        tokens_by=told["tokens_by"],
        cost_range_usd=None if costs[0] is None or costs[1] is None else (costs[0], costs[1]),
    )


def _short(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"

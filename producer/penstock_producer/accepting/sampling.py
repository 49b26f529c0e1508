"""A look at a job before it is submitted: a preview of it, or a random sample of its source.

Nothing is accepted or called. A sample is lines of input, which make a job of its own with the
requests of the whole one.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from penstock_ledger.errors import PenstockError
from penstock_producer.accepting.acceptance import beyond_budget, check_estimate, estimated_usd
from penstock_producer.accepting.estimates import Estimate, Measure, TokenMeter
from penstock_producer.accepting.survey import Survey, Surveyed, check_bad_rows, job_meter, survey
from penstock_producer.errors import SourceError
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import content_of
from penstock_producer.rows import BadRow, Document, FileSource, Tally

__all__ = [
    "FOR_ALL",
    "SAID_BY_LINES",
    "Preview",
    "Sample",
    "drawn",
    "input_line",
    "preview",
    "sample_of",
]


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be sent for a job, and what that would cost."""

    uri: str
    spec: JobSpec
    requests: Sequence[Document]  # the first that can be used
    survey: Survey
    is_whole: bool  # whether all rows were read
    prompts_usd: float | None  # what prompts alone cost; None: no price is known
    cost_usd: float | None  # with answers as long as they may be
    meter: TokenMeter  # what counts tokens

    @property
    def documents(self) -> int:
        """Those that can be used."""
        return self.survey.total - len(self.survey.refused)

    @property
    def refused(self) -> list[BadRow]:
        """Rows that would be dead letters, in their order."""
        return [one.row for one in self.survey.refused]

    @property
    def tally(self) -> Tally:
        """What the job's options changed in these rows."""
        return Tally.of_pin(self.survey.pin)

    @property
    def over_budget(self) -> str | None:
        """What to say where the job may cost more than its budget."""
        return beyond_budget(self.spec.budget_usd, self.cost_usd)

    def tokens_of(self, request: Document) -> Estimate:
        return Measure.taken([request.body], self.meter).of(1)

    def url_of(self, request: Document) -> str:
        return request.endpoint or self.spec.endpoint

    def to_json(self) -> dict[str, Any]:
        """Return it for programs, but for what is refused; None is unknown."""
        return {
            "rows": self.survey.total,
            "whole": self.is_whole,
            "documents": self.documents,
            "unusable": len(self.survey.refused),
            "requests": [
                {
                    "doc_id": one.doc_id,
                    "line": one.line,
                    "url": self.url_of(one),
                    "body": orjson.loads(one.body),
                    **_tokens(self.tokens_of(one)),
                }
                for one in self.requests
            ],
            **_tokens(self.survey.estimate),
            "tokens_by": self.meter.by,
            "prompts_usd": self.prompts_usd,
            "cost_usd": self.cost_usd,
        }

    def refusal(self) -> PenstockError | None:
        """Return what a submit of these rows would raise; None where it would accept them."""
        try:
            check_bad_rows(self.uri, self.spec, self.survey.total, self.refused)
            if self.spec.over_budget != "warn":
                check_estimate(self.spec, self.cost_usd)
        except PenstockError as error:
            return error
        return None


def _tokens(guess: Estimate) -> dict[str, Any]:
    return {
        "tokens_in": guess.tokens_in,
        "tokens_out": guess.tokens_out,
        "tokens_out_capped": guess.capped,
    }


def preview(
    source: Surveyed,
    spec: JobSpec,
    provider: ProviderFacts,
    shown: int,
    *,
    most: int | None = None,
    meter: TokenMeter | None = None,
    progress: Callable[[int], None] | None = None,
) -> Preview:
    """Read a source, and return its first ``shown`` requests and what all of it would cost.

    ``most``: how many rows are read, all where it is None. Rows that cannot be used do not stop it,
    however many the spec allows. Raises what reading raises, and SourceError `empty_source`.
    """
    first: dict[str, Document] = {}

    def keep(document: Document) -> None:
        if len(first) < shown:
            first.setdefault(document.doc_id, document)

    meter = meter or job_meter(spec)
    patient = spec.model_copy(update={"max_bad_rows": "100%"})
    found = survey(source, patient, progress, meter, keep, most)
    return Preview(
        source.uri,
        spec,
        list(first.values()),
        found,
        is_whole=most is None or found.total < most,
        prompts_usd=estimated_usd(spec, found.estimate._replace(tokens_out=0), provider),
        cost_usd=estimated_usd(spec, found.estimate, provider),
        meter=meter,
    )


# Options that a line of input says itself, once requests are made: its job has none of them.
SAID_BY_LINES: Final = (
    "prompt",
    "template",
    "system",
    "messages_field",
    "examples",
    "truncate",
    "tokenizer",
    "compress_prompt",
    "image_fields",
    "audio_fields",
    "params",
    "param_fields",
    "format",
    "sheet",
    "encoding",
    "table",
    "query",
)
FOR_ALL: Final = ("into", "into_table", "into_id")  # a trial is not for others' table


class Sample(NamedTuple):
    """What was drawn, and of how much."""

    lines: Iterator[bytes]  # of input, read as they are taken
    spec: JobSpec  # of the sample's own job
    name: str  # the same for the same draw
    documents: int  # of the whole source that can be used
    size: int  # bytes of all their requests


def sample_of(open_it: Callable[[], FileSource], spec: JobSpec, number: int) -> Sample:
    """Draw ``number`` documents, or all where there are fewer.

    The same source, options and number draw the same ones.

    ``open_it`` is called twice: all of the source is read to count it, and again for the lines.
    Raises what reading raises, and SourceError for a source without a usable document.
    """
    opened = open_it()
    found = survey(opened, spec)
    documents = found.total - len(found.refused)
    if documents == 0:
        raise SourceError(
            "empty_source", f"{opened.uri} holds no usable document to take a sample of"
        )
    options = spec.to_json()
    given = orjson.dumps(
        [options, content_of(found.pin), number], option=orjson.OPT_SORT_KEYS, default=str
    )
    digest = hashlib.sha256(given).hexdigest()
    lines = (
        input_line(one.doc_id, one.body, one.endpoint or spec.endpoint)
        for one in drawn(open_it(), found, number, seed=digest)
    )
    own = {name: value for name, value in options.items() if name not in (*SAID_BY_LINES, *FOR_ALL)}
    its_spec = JobSpec.from_json(own | {"response_format": "none"})
    return Sample(lines, its_spec, f"sample-{digest[:8]}", documents, found.size)


def drawn(opened: FileSource, found: Survey, number: int, *, seed: str) -> Iterator[Document]:
    """Yield ``number`` documents, or all when there are fewer, in the order of the source.

    Each is as likely as the others.
    """
    refused = {refusal.row.line for refusal in found.refused}
    usable = found.total - len(refused)
    wanted = frozenset(random.Random(seed).sample(range(usable), min(number, usable)))
    rows = (row for row in opened.documents({}) if row.line not in refused)
    documents: Any = (
        row for index, row in enumerate(itertools.islice(rows, usable)) if index in wanted
    )
    return iter(documents)


def input_line(doc_id: str, body: bytes, endpoint: str) -> bytes:
    """Return an OpenAI Batch line, its end included."""
    line: Mapping[str, Any] = {
        "custom_id": doc_id,
        "method": "POST",
        "url": endpoint,
        "body": orjson.Fragment(body),
    }
    # A body may have line ends between its tokens, where a blank does as well.
    return orjson.dumps(line).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"

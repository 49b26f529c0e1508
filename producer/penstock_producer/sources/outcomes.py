"""The outcomes of another job as a source: `--from-job J --where …`.

The pin names the job and its generation, and what a generation left never changes: a later replay
of that job changes nothing here. Outcomes come by generation and document id, so a cursor is the
last of both, and a position is one of both.

With a prompt each outcome is a record, with the columns of ``OWN``, `prompt` (the text that was
sent; dead letters keep it) and the fields of the answer. Without one, the request of a dead letter
is sent again, with the model and parameters of this job in the place of its own; a result keeps no
request.

A condition is a name, a comparison and a value: `status=dead`, `score<0.5 and label!=spam`; nothing
is ever executed. A name is one of the outcome's own; any other is a field of the answer, where that
is a JSON object: `score`, or `answer.score` where the name is taken, `rating.score` for a field
within a field. A field that is absent is null: `score=null` finds outcomes without it, and `<`,
`<=`, `>`, `>=` hold for numbers only.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from penstock_ledger import JobNotFound, JobStore, OutcomeStore
from penstock_ledger.lone_surrogates import parse_json
from penstock_ledger.model import DeadLetter, Job, Result
from penstock_ledger.texts import Command, Run, SetOption, Text
from penstock_producer.dialects.pieces import answer_text, sent_text
from penstock_producer.errors import (
    BadReference,
    Problem,
    SourceChanged,
    SourceUnavailable,
    SpecError,
    seen,
)
from penstock_producer.job.spec import JobSpec
from penstock_producer.prices import usd_of_outcome
from penstock_producer.rows import (
    DEFAULT_MAX_BODY_BYTES,
    BadRow,
    Cursor,
    Document,
    FiniteSource,
    Place,
    Tally,
)
from penstock_producer.sources.forms.media import media_of
from penstock_producer.sources.forms.row_forms import BatchLines, RowForm, form_of
from penstock_producer.sources.forms.strict_json import RowFault

__all__ = ["OWN", "Where"]


OWN: Final = (
    "id",
    "status",
    "reason",
    "error",
    "model",
    "finish_reason",
    "attempts",
    "calls",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "latency_ms",
    "generation",
    "answer",
)
STATUSES: Final = ("done", "dead")
MAX_CHARS: Final = 2_000  # of all conditions together
MAX_CONDITIONS: Final = 20

_CONDITION: Final = re.compile(
    r"\s*([A-Za-z_][\w.-]{0,200})\s*(<=|>=|!=|=|<|>)\s*(\S.*?)\s*", re.DOTALL
)
# a value may hold the word "and"
_AND: Final = re.compile(r"\s+and\s+(?=[A-Za-z_][\w.-]*\s*[<>=!])")
_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Condition(NamedTuple):
    name: str
    compare: str
    text: str
    number: float | None  # the value as a number, where it is one


class Where:
    """All conditions, each of which must hold. Raises SpecError for one that cannot be read."""

    def __init__(self, given: Sequence[str]) -> None:
        if sum(map(len, given)) > MAX_CHARS:
            raise _refused(given[0], f"conditions have at most {MAX_CHARS} characters together")
        parts = [part for text in given for part in _AND.split(text)]
        if len(parts) > MAX_CONDITIONS:
            raise _refused(given[0], f"give at most {MAX_CONDITIONS} conditions")
        self.texts = tuple(given)
        self._conditions = [_condition(part) for part in parts]

    @property
    def status(self) -> str | None:
        """The one status that can satisfy them; None where both can.

        It spares reading the others."""
        return next(
            (one.text for one in self._conditions if (one.name, one.compare) == ("status", "=")),
            None,
        )

    def holds(self, record: Mapping[str, Any], answer: Any) -> bool:
        """Return whether the conditions hold for an outcome.

        ``record``: the outcome's own fields; ``answer``: what the answer is as JSON.
        """
        return all(_holds(one, _value(one.name, record, answer)) for one in self._conditions)


def _condition(text: str) -> _Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise _refused(
            text, "write NAME=VALUE, or another of != < <= > >=, such as status=dead or score<0.5"
        )
    name, compare, value = found.groups()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return _Condition(name, compare, value[1:-1], None)
    number = _number(value)
    if compare in _ORDER and number is None:
        raise _refused(text, f"{compare} compares numbers, such as {name}{compare}0.5")
    if name == "status" and value not in STATUSES:
        raise _refused(text, f"a status is {' or '.join(STATUSES)}")
    return _Condition(name, compare, value, number)


def _value(name: str, record: Mapping[str, Any], answer: Any) -> Any:
    if name in OWN:
        return record.get(name)
    found = answer
    for part in name.removeprefix("answer.").split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _holds(condition: _Condition, value: Any) -> bool:
    if condition.compare in _ORDER:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        return (
            number is not None
            and condition.number is not None
            and _ORDER[condition.compare](number, condition.number)
        )
    return _equal(condition, value) is (condition.compare == "=")


def _equal(condition: _Condition, value: Any) -> bool:
    match value:
        case None:
            return condition.text == "null"
        case bool():
            return condition.text == ("true" if value else "false")
        case int() | float():
            return condition.number == value
        case _:
            return bool(value == condition.text)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _refused(text: str, fix: str) -> SpecError:
    return SpecError([Problem("invalid_value", "/where", f"{seen(text)} is refused", fix)])


KIND: Final = "job"
AFTER: Final = "after_generation"  # of a pin: outcomes up to this generation are left out
MAX_PARSED_CHARS: Final = 1_000_000  # an answer longer than this is text, whatever it looks like
_POSITION: Final = re.compile(r"(\d{1,9}):(.+)", re.DOTALL)  # generation and document id


def pin_of(
    job: Job,
    where: Where,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    *,
    after_generation: int = 0,
) -> dict[str, Any]:
    """Return the pin of a job over the outcomes of ``job``.

    They are those of all generations, or of those after one.

    Raises SourceUnavailable while that job has not ended.
    """
    if not job.state.final:
        raise SourceUnavailable(
            Text(
                f"job {job.job_key} is {job.state}: its outcomes can be read once it has ended (",
                Run(Command.STATUS, (SetOption("watch"),)),
                ")",
            ),
            code="job_not_ended",
        )
    later = {AFTER: after_generation} if after_generation else {}
    return {
        "kind": KIND,
        "uri": f"job:{job.job_id}",
        "job_id": job.job_id,
        "job_key": job.job_key,
        "generation": job.generation,
        "where": list(where.texts),
        "max_body_bytes": max_body_bytes,
        **later,
    }


class OutcomesSource(FiniteSource):
    """The outcomes that one job had when another was submitted over them."""

    id_field = "id"

    def __init__(
        self, pin: Mapping[str, Any], spec: JobSpec, jobs: JobStore, outcomes: OutcomeStore
    ) -> None:
        """Take in what to read. Raises SpecError for conditions, or a spec, that cannot be used."""
        self.uri = str(pin["uri"])
        self._pin = dict(pin)
        self._spec = spec
        self._where = Where(pin["where"])
        limit = int(pin["max_body_bytes"])
        self._form = form_of(spec, limit, media_of(spec, None, limit))
        self._changes = ({} if spec.model is None else {"model": spec.model}) | spec.sent_params()
        self._jobs = jobs
        self._outcomes = outcomes

    def pin(self) -> dict[str, Any]:
        return dict(self._pin)

    def place(self, line: int) -> Place:
        return Place(self.uri, line)

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        skipped = int(self._pin.get(AFTER, 0))
        after = (int(cursor["generation"]), str(cursor["after"])) if cursor else (skipped + 1, "")
        self._expect_job()
        for outcome in self._outcomes.as_of(
            self._pin["job_id"], self._pin["generation"], after=after, status=self._where.status
        ):
            row = self._read(outcome)
            if row is not None:
                yield row
        self._expect_job()  # a purge meanwhile would look like the end

    @property
    def tally(self) -> Tally:
        return self._form.tally

    def fetch(self, position: str) -> Document:
        span = _POSITION.fullmatch(position)
        if span is None:
            raise BadReference(f"{seen(position)} is not the position of an outcome in {self.uri}")
        outcome = self._outcomes.of_generation(self._pin["job_id"], int(span[1]), span[2])
        if outcome is None:
            self._expect_job()
            raise BadReference(f"{self.uri} has no outcome at {seen(position)}")
        document = self._read(outcome)
        if not isinstance(document, Document):
            raise BadReference(
                f"{self.uri}: the outcome at {seen(position)} is no document of this job"
            )
        return document

    def _read(self, outcome: Result | DeadLetter) -> Document | BadRow | None:
        """Return a row of an outcome; None for one that the conditions leave out."""
        answer = _loads(outcome.body) if isinstance(outcome, Result) else None
        text = answer_text(answer)
        fields = None if text is None or len(text) > MAX_PARSED_CHARS else _loads(text)
        record = _record(outcome, text)
        if not self._where.holds(record, fields):
            return None
        _, generation, doc_id = outcome.key
        cursor: Cursor = {"generation": generation, "after": doc_id}
        request = outcome.request if isinstance(outcome, DeadLetter) else b""
        try:
            body = (
                self._asked(record, fields, request)
                if self._spec.takes_records
                else self._again(outcome)
            )
        except RowFault as fault:
            row = fault.row(self.uri, 0, cursor)
            return replace(row, doc_id=doc_id, request=request)
        endpoint = None if self._spec.takes_records else outcome.endpoint
        return Document(doc_id, body, f"{generation}:{doc_id}", 0, cursor, endpoint)

    def _again(self, outcome: Result | DeadLetter) -> bytes:
        if isinstance(outcome, Result):
            raise RowFault(
                "no_request",
                "A result keeps no request that could be sent again.",
                fix=Text(
                    "choose dead letters (",
                    SetOption("where", "status=dead"),
                    "), or give a prompt over {answer} (",
                    SetOption("prompt"),
                    ")",
                ),
            )
        if not outcome.request:
            raise RowFault(
                outcome.reason, outcome.last_error, fix="correct the row and submit it again"
            )
        request = _loads(outcome.request)
        form: RowForm = self._form
        if outcome.endpoint is not None and isinstance(self._form, BatchLines):
            form = self._form.at(outcome.endpoint)
        return form.request({**request, **self._changes} if isinstance(request, dict) else request)

    def _asked(self, record: Mapping[str, Any], fields: Any, request: bytes) -> bytes:
        sent = sent_text(_loads(request)) if request else None
        own = {**record, **({} if sent is None else {"prompt": sent})}
        return self._form.request({**(fields if isinstance(fields, dict) else {}), **own})

    def _expect_job(self) -> None:
        try:
            self._jobs.get(self._pin["job_id"])
        except JobNotFound:
            raise SourceChanged(
                f"job {self._pin['job_key']}, whose outcomes are read, was purged; restore the "
                "database, or cancel this job"
            ) from None


def _record(outcome: Result | DeadLetter, text: str | None) -> dict[str, Any]:
    """Return the outcome's own fields, those that it has."""
    common = {
        "id": outcome.key.doc_id,
        "generation": outcome.key.generation,
        "attempts": outcome.attempts,
        "calls": outcome.calls,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "cost_usd": usd_of_outcome(outcome),
        "latency_ms": outcome.latency_ms,
    }
    own: dict[str, Any]
    if isinstance(outcome, DeadLetter):
        own = {"status": "dead", "reason": outcome.reason, "error": outcome.last_error}
    else:
        own = {
            "status": "done",
            "model": outcome.model,
            "finish_reason": outcome.finish_reason,
            "answer": text,
        }
    return {name: value for name, value in (common | own).items() if value is not None}


def _loads(body: bytes | str) -> Any:
    try:
        return parse_json(body)
    except ValueError:
        return None

"""A file of requests is checked line by line, and its errors are worded as OpenAI words them.

And the checks that a job alone does not make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock_gateway.settings import GatewaySettings
from penstock_ledger.texts import Text
from penstock_producer import JobSpec, SourceError, SourceUnavailable
from penstock_producer.accepting.survey import survey
from penstock_producer.job.endpoints import EMBEDDINGS
from penstock_producer.reporting.advice import over_http
from penstock_producer.sources import BadRow, Document, FileSource, open_source

__all__ = ["LineChecks", "faults_in", "first_model", "of_the_batch", "one_model"]

ERRORS_MAX: Final = 100  # that are listed; one more says that there are others

# Codes of rows that OpenAI has another word for.
_CODES: Final[Mapping[str, str]] = {"invalid_url": "url_mismatch", "empty_source": "empty_file"}


class _Named(msgspec.Struct):
    model: str | None = None


class _Asked(_Named):
    input: Any = None  # read for embeddings only


_READ_MODEL: Final = msgspec.json.Decoder(_Named).decode
_READ_TEXTS: Final = msgspec.json.Decoder(_Asked).decode


class LineChecks:
    """One model, one endpoint, and no more requests than one batch may have."""

    def __init__(self, settings: GatewaySettings, endpoint: str) -> None:
        door = settings.gateway.batches
        self._endpoint = endpoint
        self._model: str | None = None
        self._one_model = door.models == "one"
        self._most = door.max_requests
        self._read: Callable[[bytes], _Named] = (
            _READ_TEXTS if endpoint == EMBEDDINGS else _READ_MODEL
        )
        self._lines = self._texts = 0

    def check(self, document: Document) -> BadRow | None:
        """Return why a line is refused. Raises SourceError where there are too many of them."""
        if (bad := self.other_url(document)) is not None:
            return bad
        asked = self._read(document.body)
        self._lines += 1
        if isinstance(asked, _Asked):
            self._texts += _texts_in(asked.input)
        if max(self._lines, self._texts) > self._most:
            what = "requests" if self._lines > self._most else "embedding inputs"
            told = (
                f"The input file has more {what} than the {self._most} that one batch may have; "
                "use several batches."
            )
            raise SourceError("too_many_tasks", told)
        if self._model is None:
            self._model = asked.model
        if self._one_model and asked.model != self._model:
            return _other_model(document, asked.model, self._model)
        return None

    def other_url(self, row: Document | BadRow) -> BadRow | None:
        """Refuse a line for another endpoint than the batch's, whatever else is wrong with it.

        Returns None for all others."""
        return None if row.endpoint is None else _other_url(row, self._endpoint)


def faults_in(path: str, spec: JobSpec, settings: GatewaySettings) -> list[dict[str, Any]]:
    """Return every line that is refused, up to ``ERRORS_MAX``, in their order."""
    checks = LineChecks(settings, spec.endpoint)
    source = _Sorting(open_source(path, spec, settings), checks)
    try:
        found = survey(source, spec.model_copy(update={"max_bad_rows": ERRORS_MAX * 10}))
        # duplicates, which only the whole file shows
        source.bad += [refused.row for refused in found.refused]
    except SourceError as error:
        if error.code != "empty_source":
            return [*_listed(source.bad), of_the_batch(error, path)]
    return _listed(source.bad)


def first_model(path: str, spec: JobSpec, settings: GatewaySettings) -> str | None:
    """Return the model of the first line; None where it is no request. Raises SourceError."""
    first = next(iter(open_source(path, spec, settings).documents({})), None)
    return _READ_MODEL(first.body).model if isinstance(first, Document) else None


def one_model(
    path: str, spec: JobSpec, settings: GatewaySettings, go_on: Callable[[], None]
) -> str | None:
    """Return the one that all lines name; None where one names another or none, or is no request.

    ``go_on`` is called for each line.

    Raises SourceUnavailable; what else is wrong with the file is said by those who check it.
    """
    found: str | None = None
    try:
        for row in open_source(path, spec, settings).documents({}):
            go_on()
            model = _READ_MODEL(row.body).model if isinstance(row, Document) else None
            if model is None or model != (found or model):
                return None
            found = model
    except SourceUnavailable:
        raise
    except SourceError:
        return None
    return found


def of_the_batch(error: SourceError, path: str) -> dict[str, Any]:
    """Return a fault of the file as a whole, without the place where it lies here."""
    message = over_http(error.public).replace(path, "the input file")
    return {
        "code": _CODES.get(error.code, error.code),
        "line": None,
        "message": message,
        "param": None,
    }


class _Sorting:
    """A source that keeps its bad rows apart, and ends where enough of them are known."""

    def __init__(self, source: FileSource, checks: LineChecks) -> None:
        self.bad: list[BadRow] = []
        self.uri, self.id_field, self.tally = source.uri, source.id_field, source.tally
        self.pin, self.place = source.pin, source.place
        self._source = source
        self._checks = checks

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        for row in self._source.documents(cursor):
            bad = (
                self._checks.other_url(row) or row
                if isinstance(row, BadRow)
                else self._checks.check(row)
            )
            if bad is None:
                yield row
            elif len(self.bad) > ERRORS_MAX:
                return
            else:
                self.bad.append(bad)


def _listed(bad: list[BadRow]) -> list[dict[str, Any]]:
    rows = sorted(bad, key=lambda row: row.line)
    listed: list[dict[str, Any]] = [
        {
            "code": _CODES.get(row.code, row.code),
            "line": row.line or None,
            "message": over_http(Text(row.message, " Fix: ", row.fix, ".")),
            "param": row.field,
        }
        for row in rows[:ERRORS_MAX]
    ]
    if len(rows) > ERRORS_MAX:
        told = f"More lines are refused; the first {ERRORS_MAX} are listed."
        listed.append({"code": "too_many_errors", "line": None, "message": told, "param": None})
    return listed


def _texts_in(given: Any) -> int:
    """Count the inputs: one text, a list of them, a list of tokens, or a list of such."""
    if isinstance(given, list) and given and not isinstance(given[0], int):
        return len(given)
    return 1


def _other_url(row: Document | BadRow, endpoint: str) -> BadRow:
    return BadRow(
        uri="",
        line=row.line,
        code="invalid_url",
        field="url",
        message=f"The url {row.endpoint} does not match the batch endpoint {endpoint}.",
        seen=str(row.endpoint)[:80],
        fix="use a batch for each endpoint",
        doc_id=row.doc_id,
        cursor=row.cursor,
    )


def _other_model(document: Document, model: str | None, first: str | None) -> BadRow:
    return BadRow(
        uri="",
        line=document.line,
        code="model_mismatch",
        field="body.model",
        message=(
            f"The model {model!r} is not that of the lines before, {first!r}: a batch has one "
            "model."
        ),
        seen=str(model)[:80],
        fix="use a batch for each model, or have the operator set gateway.batches.models to any",
        doc_id=document.doc_id,
        cursor=document.cursor,
    )

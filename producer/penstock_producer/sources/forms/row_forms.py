"""The two forms of an input row, each turned into (doc_id, request body, endpoint).

OpenAI Batch lines `{"custom_id", "method", "url", "body"}` keep their body: the spec's model and
params only fill in what it lacks. (A line may name a path of its own, where all lanes of the job
answer it; a line for another API than the job's is translated.) Plain records become
a body through the spec's prompt, or with the messages in one of their columns. The spec decides
which form it is: with one of both, plain records; without, batch lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from penstock_ledger.texts import SetOption, SetParam, Text
from penstock_producer.dialects.translation import is_translated, request_for
from penstock_producer.errors import SourceError, seen
from penstock_producer.job.endpoints import UPLOADS
from penstock_producer.job.params import as_sent, read_from_column, value_fault
from penstock_producer.job.request_body import (
    at_endpoint,
    is_anthropic,
    nested_of,
    text_field,
    url_refusal,
)
from penstock_producer.job.response_format import CONSTRAINTS, FIELD
from penstock_producer.job.routing import ROUTE_FIELD
from penstock_producer.job.spec import JobSpec
from penstock_producer.prompts.messages import BadMessages
from penstock_producer.rows import DEFAULT_MAX_BODY_BYTES, ROW_ID, Tally, id_fault
from penstock_producer.sources.forms.asked import Attachments, asked_of
from penstock_producer.sources.forms.media import body_limit
from penstock_producer.sources.forms.strict_json import RowFault, bounded, columns_of


class RowForm(Protocol):
    control_keys: tuple[bytes, ...]
    # that every row must have; None where rows are requests of their own
    columns: tuple[str, ...] | None
    param_columns: tuple[str, ...]  # that parameters come from: a row may leave them empty
    route_columns: tuple[str, ...]  # that the rules of routes look at: likewise
    read_columns: tuple[str, ...] | None  # that may be read, others need not be; None for all
    media_columns: tuple[str, ...]  # of images and sounds: their values may be bytes
    tally: Tally  # of what it changed in rows

    def read(self, record: dict[str, Any]) -> tuple[str, bytes, str | None]:
        """Return the document id and the request body of a row of a file, and its endpoint.

        The endpoint is None where it is the job's. Raises RowFault.
        """
        ...

    def request(self, given: dict[str, Any]) -> bytes:
        """Return the request body for what a service pushes.

        That is a body without a prompt, a record with one. Raises RowFault.
        """
        ...

    def mistaken_for(self, record: Mapping[str, Any]) -> str | None:
        """Return what to do about a record that plainly has the other form; else None."""
        ...


def form_of(
    spec: JobSpec, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES, media: Attachments | None = None
) -> RowForm:
    """Return the form that ``spec`` asks for.

    Raises SpecError when the spec cannot make requests out of plain records.

    A row whose request would be larger than ``max_body_bytes`` is refused. ``media``: what reads
    the images and sounds that rows name, where the spec has columns of them.
    """
    limit = body_limit(spec, max_body_bytes)
    return PlainRecords(spec, limit, media) if spec.takes_records else BatchLines(spec, limit)


def columns_read(spec: JobSpec) -> tuple[str, ...] | None:
    """Return the columns that requests are made of; None where each row is needed whole.

    Raises SpecError as ``form_of`` does."""
    form = form_of(spec)
    if form.read_columns is None:
        return None
    return tuple(dict.fromkeys((*form.read_columns, *form.media_columns)))


ANOTHER_ID: Final = Text(
    "give every row an id of its own, or name another id column (", SetOption("id_field"), ")"
)


def check_doc_id(value: Any, field: str, *, fix: str = "give every row an id of its own") -> str:
    """Return ``value`` as a document id: 1 to 512 bytes without control characters.

    Raises RowFault.
    """
    if type(value) is not str:
        raise RowFault(
            "invalid_id",
            f"An id is text, not {type(value).__name__}.",
            fix=fix,
            field=field,
            value=seen(value),
        )
    fault = id_fault(value)
    if fault is not None:
        message, remedy = fault
        raise RowFault("invalid_id", message, fix=remedy or fix, field=field, value=seen(value))
    return value


class BatchLines:
    """OpenAI Batch input lines."""

    # Where the last of two values would win in silence; of `method` and `url` only one value is
    # accepted anyway.
    control_keys: tuple[bytes, ...] = (b'"custom_id"', b'"body"', b'"model"')
    columns: tuple[str, ...] | None = None
    param_columns: tuple[str, ...] = ()
    route_columns: tuple[str, ...] = ()
    read_columns: tuple[str, ...] | None = ()
    media_columns: tuple[str, ...] = ()

    def __init__(self, spec: JobSpec, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> None:
        self._endpoint = spec.endpoint
        # by endpoint: as the lines that name it are read
        self._spec, self._others = (spec, dict[str, BatchLines]())
        self._max_body_bytes = max_body_bytes
        self._needs_model = spec.asks_a_provider
        self._defaults = ({} if spec.model is None else {"model": spec.model}) | spec.sent_params()
        self._asks_for_form = FIELD in self._defaults
        self._text_field = text_field(spec.endpoint)
        self._files_field = UPLOADS.get(spec.endpoint)
        self._is_anthropic, self._nested = is_anthropic(spec.endpoint), nested_of(spec.endpoint)
        self._model, self._params = spec.model, spec.sent_params()
        self.tally = Tally()

    def read(self, record: dict[str, Any]) -> tuple[str, bytes, str | None]:
        try:
            custom_id, method, url, body = (
                record["custom_id"],
                record["method"],
                record["url"],
                record["body"],
            )
        except KeyError as missing:
            raise _missing(str(missing.args[0]), record) from None
        doc_id = check_doc_id(custom_id, "custom_id", fix="give every line a custom_id of its own")
        form = self
        try:
            form = self._of_target(method, url)
            if form is not self:
                return doc_id, form.request(body), url
            return (
                doc_id,
                self.request(self._translated(body, url) if url != self._endpoint else body),
                None,
            )
        except RowFault as fault:
            fault.doc_id, fault.endpoint = doc_id, None if form is self else url
            raise

    def request(self, given: Any) -> bytes:
        if type(given) is not dict:
            raise RowFault(
                "invalid_request",
                "The body is not an object.",
                fix="put the request here",
                field="body",
                value=seen(given),
            )
        if ROUTE_FIELD in given:  # of another job's dead letter: which of its rules took it
            given = {name: value for name, value in given.items() if name != ROUTE_FIELD}
        request = {**self._defaults, **given} if self._defaults else given
        if self._asks_for_form and FIELD not in given and not CONSTRAINTS.isdisjoint(given):
            del request[FIELD]  # the line says in another field what its answer looks like
        if self._nested is not None:
            request = self._nested.with_defaults(given, self._model, self._params)
        self._check_request(request)
        return bounded(orjson.dumps(request), self._max_body_bytes)

    def mistaken_for(self, record: Mapping[str, Any]) -> str | None:
        if any(name in record for name in ("custom_id", "method", "url", "body")):
            return None
        return Text(
            f"the first row is a plain record with the columns {columns_of(record)}, not an "
            "OpenAI Batch line; "
            f'give a prompt such as "Summarise: {{{next(iter(record), "text")}}}" (',
            SetOption("prompt"),
            ")",
        )

    def _is_translated(self, url: Any) -> bool:
        """Return whether lines for this path become requests to the job's, as none may be its."""
        if type(url) is not str or not is_translated(url, self._endpoint):
            return False
        return url_refusal(url, self._spec) is not None

    def _translated(self, body: Any, url: str) -> Any:
        """Translate a line for another API than the job's. Raises RowFault."""
        try:
            return request_for(self._endpoint, body, url) if type(body) is dict else body
        except BadMessages as error:
            raise RowFault(
                "untranslatable_request",
                error.message,
                fix=error.fix,
                field=f"body.{error.place}",
                value=error.value,
            ) from None

    def _of_target(self, method: Any, url: Any) -> BatchLines:
        """Return what reads a line with this target: itself, or another for another endpoint."""
        if method != "POST":
            raise RowFault(
                "invalid_method",
                "Only POST is supported.",
                fix='write "POST"',
                field="method",
                value=seen(method),
            )
        if url == self._endpoint or self._is_translated(url):
            return self
        return self.at(url)

    def at(self, url: Any) -> BatchLines:
        """Return what reads lines that name this path, which is not the job's.

        Raises RowFault for a path that none may name.
        """
        other = self._others.get(url) if type(url) is str else None
        if other is None:
            if (refusal := url_refusal(url, self._spec)) is not None:
                why, fix = refusal
                raise RowFault("invalid_url", why, fix=fix, field="url", value=seen(url))
            other = self._others[url] = BatchLines(
                at_endpoint(self._spec, url), self._max_body_bytes
            )
        return other

    def _check_request(self, request: Mapping[str, Any]) -> None:
        if request.get("stream"):
            raise RowFault(
                "streaming_unsupported",
                "Results are stored whole, not streamed.",
                fix='remove "stream"',
                field="body.stream",
                value=seen(request["stream"]),
            )
        model = request.get("model")
        if (self._needs_model or model is not None) and (type(model) is not str or not model):
            raise _invalid_request(
                "model",
                model,
                Text("name a model here, or one for all lines (", SetOption("model"), ")"),
            )
        if self._nested is not None and not self._nested.names(model):
            raise _invalid_request("model", model, f"write its name: {self._nested.example}")
        longest = request.get("max_tokens")
        if self._is_anthropic and (type(longest) is not int or longest < 1):
            raise _invalid_request(
                "max_tokens",
                longest,
                Text("give it here, or for all lines (", SetParam("max_tokens", 1024), ")"),
            )
        if self._files_field is not None:
            self._check_files(request.get(self._files_field))
        elif self._text_field is not None and not request.get(self._text_field):
            raise _invalid_request(
                self._text_field, request.get(self._text_field), "give the text to work on"
            )

    def _check_files(self, given: Any) -> None:
        files = given if isinstance(given, list) else [given]
        if files and all(isinstance(one, str) and one.startswith("data:") for one in files):
            return
        fix = Text(
            "a line holds the file itself, data:audio/mpeg;base64,…; rows that name files have a "
            "column for them (",
            SetOption("image_fields" if self._files_field == "image" else "audio_fields"),
            ")",
        )
        raise _invalid_request(self._files_field or "", given, fix)


class PlainRecords:
    """Records of any columns, turned into requests.

    It is done by the spec's prompt, or by the messages that a column holds.
    """

    def __init__(
        self,
        spec: JobSpec,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        media: Attachments | None = None,
    ) -> None:
        self.tally = Tally()
        self._asked = asked_of(spec, max_body_bytes, self.tally, media)
        self._id_field = spec.id_field
        # none, where rows are numbered
        self._id_column = () if spec.id_field == ROW_ID else (spec.id_field,)
        self._param_fields = spec.param_fields
        self._endpoint = spec.endpoint
        self._asked_by = SetOption("prompt" if spec.messages_field is None else "messages_field")
        self.columns: tuple[str, ...] | None = tuple(
            dict.fromkeys((*self._id_column, *self._asked.required))
        )
        self.param_columns: tuple[str, ...] = tuple(spec.param_fields.values())
        self.media_columns: tuple[str, ...] = (*spec.image_fields, *spec.audio_fields)
        self.route_columns: tuple[str, ...] = self._asked.route_columns
        names = dict.fromkeys(
            (
                *self._id_column,
                *self._asked.fields,
                *spec.param_fields.values(),
                *self.route_columns,
            )
        )
        self.read_columns: tuple[str, ...] | None = None if self._asked.whole_row else tuple(names)
        self.control_keys: tuple[bytes, ...] = tuple(orjson.dumps(name) for name in names)

    def read(self, record: dict[str, Any]) -> tuple[str, bytes, str | None]:
        doc_id = self._doc_id(record)
        try:
            return doc_id, self.request(record), None
        except RowFault as fault:
            fault.doc_id = doc_id
            raise

    def request(self, given: dict[str, Any]) -> bytes:
        return self._asked.body(given, self._params(given) if self._param_fields else None)

    def _params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row's own parameters. Raises RowFault."""
        found: dict[str, Any] = {}
        for name, column in self._param_fields.items():
            value = read_from_column(name, given.get(column), self._endpoint)
            if value is None:
                continue
            fix = value_fault(name, value, self._endpoint)
            if fix is not None:
                message = (
                    f"The parameter {name} of this row comes from the column {column!r}, and its "
                    "value is refused."
                )
                raise RowFault(
                    "invalid_parameter", message, fix=fix, field=column, value=seen(given[column])
                )
            found[name] = value
        return as_sent(found)

    def mistaken_for(self, record: Mapping[str, Any]) -> str | None:
        if all(name in record for name in ("custom_id", "method", "url", "body")):
            return Text(
                "the first row is an OpenAI Batch line, which has a request of its own; leave the "
                "prompt out (",
                self._asked_by,
                ")",
            )
        return None

    def _doc_id(self, record: Mapping[str, Any]) -> str:
        if self._id_field not in record:
            raise RowFault(
                "missing_required_parameter",
                f"There is no column {self._id_field!r} to take the id from.",
                fix=Text(
                    "name the id column (",
                    SetOption("id_field"),
                    "), or ",
                    *_NUMBERED,
                    f"; columns here: {columns_of(record)}",
                ),
                field=self._id_field,
            )
        value = record[self._id_field]
        if type(value) is int:
            return str(value)
        return check_doc_id(
            value,
            self._id_field,
            fix=ANOTHER_ID,
        )


def _missing(name: str, record: Mapping[str, Any]) -> RowFault:
    doc_id = record.get("custom_id")
    return RowFault(
        "missing_required_parameter",
        f"Missing required parameter: {name!r}.",
        fix=Text(
            "a batch line has custom_id, method, url and body; plain records need a prompt (",
            SetOption("prompt"),
            ")",
        ),
        field=name,
        value=f"columns {columns_of(record)}",
        doc_id=doc_id if isinstance(doc_id, str) else None,
    )


def _invalid_request(name: str, value: Any, fix: str) -> RowFault:
    return RowFault(
        "invalid_request",
        f"The request has no usable {name!r}.",
        fix=fix,
        field=f"body.{name}",
        value=seen(value),
    )


_SHOWN = 20
_NUMBERED = ("have the rows numbered where none has ids (", SetOption("id_field", ROW_ID), ")")


def check_columns(
    uri: str, form: RowForm, names: Sequence[str], *, nested: bool, id_field: str = ""
) -> None:
    """Raise SourceError for a column that the job needs and no row can have.

    It is raised, too, where rows can be no batch lines. ``nested``: columns may hold objects, so
    that `{user.name}` may be `name` of the column `user`. ``id_field`` is given where rows may be
    numbered in its place.
    """
    if form.columns is None:
        raise SourceError(
            "wrong_form",
            Text(
                f"{uri} has rows of columns, and without a prompt a source holds OpenAI Batch "
                "lines; give a prompt such as "
                f'"Summarise: {{{next(iter(names), "text")}}}" (',
                SetOption("prompt"),
                ")",
            ),
        )
    shown = ", ".join(map(seen, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
    for name in form.columns:
        if name not in names and not (nested and name.partition(".")[0] in names):
            otherwise = ("; or ", *_NUMBERED) if name == id_field else ()
            raise SourceError(
                "missing_column",
                Text(
                    f"{uri} has no column {seen(name)}; name the id column (",
                    SetOption("id_field"),
                    f") and the prompt's {{columns}} as they are: {shown}",
                    *otherwise,
                ),
            )
    for name in form.param_columns:
        if name not in names:
            raise SourceError(
                "missing_column",
                Text(
                    f"{uri} has no column {seen(name)} to take a parameter from; name it (",
                    SetOption("param_fields"),
                    f") as it is: {shown}",
                ),
            )
    for name in form.route_columns:
        if name not in names and not (nested and name.partition(".")[0] in names):
            raise no_route_column(uri, name, shown)


def no_route_column(uri: str, name: str, shown: str) -> SourceError:
    """Return the refusal of a source without a column that a rule of the job looks at."""
    return SourceError(
        "missing_column",
        Text(
            f"{uri} has no column {seen(name)} for a rule to look at; name it (",
            SetOption("routes"),
            f") as it is: {shown}",
        ),
    )

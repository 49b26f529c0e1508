"""A plain record becomes the request body that asks about it.

It is the job's prompt rendered for the record, or the messages in its column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import Problem, SpecError
from penstock_producer.job.request_body import BodyBuilder, prompt_bodies
from penstock_producer.job.routing import marked
from penstock_producer.job.spec import JobSpec
from penstock_producer.prompts.examples import example_messages
from penstock_producer.prompts.languages import Language, Prompt, default_in, prompt_of
from penstock_producer.prompts.messages import BadMessages, checked_messages
from penstock_producer.prompts.template import MissingField, RenderFailed, TextTooLong
from penstock_producer.prompts.tokens import NotText, compressed, counter_of, cut_of, shortened
from penstock_producer.rows import MISSING_FIELD, Tally
from penstock_producer.sources.forms.routed import RoutedBodies
from penstock_producer.sources.forms.strict_json import (
    RowFault,
    bounded,
    columns_of,
    meant,
    parse_value,
    too_large,
)

__all__ = ["Asked", "Attachments", "asked_of"]


class Asked(Protocol):
    """Makes request bodies of records, and counts in a tally what it changed in them."""

    required: tuple[str, ...]  # columns that every row must have
    fields: tuple[str, ...]  # columns that it may read
    whole_row: bool  # whether it may read others, too
    route_columns: tuple[str, ...]  # that rules look at; a row may have none of them

    def body(self, record: Mapping[str, Any], params: Mapping[str, Any] | None) -> bytes:
        """Return the request body of a record. ``params`` are the row's own. Raises RowFault."""
        ...


class Attachments(Protocol):
    """Puts what a row names beside its text."""

    def content(self, text: str, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the parts of a chat message. Raises RowFault."""
        ...

    def texts(self, record: Mapping[str, Any], used: Collection[str]) -> Mapping[str, Any]:
        """Return the row as a prompt that uses these columns may have it: without contents.

        Raises RowFault.
        """
        ...


def asked_of(spec: JobSpec, max_body_bytes: int, tally: Tally, media: Attachments | None) -> Asked:
    """Return what makes a request of a record.

    Raises SpecError when the spec cannot make requests out of plain records.
    """
    if spec.messages_field is not None:
        return MessagesColumn(spec, spec.messages_field, max_body_bytes, tally)
    prompt = prompt_of(spec.prompt or "", spec.template)  # forms with files may have none
    return RenderedPrompt(spec, prompt, max_body_bytes, tally, media)


class RenderedPrompt:
    """The prompt, rendered for each record.

    Its texts are cut first, blanks taken out after, images and sounds put behind it.
    """

    def __init__(
        self,
        spec: JobSpec,
        prompt: Prompt,
        max_body_bytes: int,
        tally: Tally,
        media: Attachments | None,
    ) -> None:
        named = (*spec.image_fields, *spec.audio_fields)
        if named and media is None:
            fix = "name files, or push documents into an open job"
            raise SpecError(
                [
                    Problem(
                        "invalid_value",
                        "/image_fields",
                        "this source has no images and sounds",
                        fix,
                    )
                ]
            )
        self._media = media
        self._prompt = prompt
        self._language: Language = spec.template
        self._max_body_bytes = max_body_bytes
        self._tally = tally
        tokens = None if spec.tokens_counted is None else counter_of(spec.tokenizer)
        self._cuts = {name: cut_of(policy, tokens) for name, policy in spec.truncate.items()}
        self._compresses = spec.compress_prompt
        self.required: tuple[str, ...] = (*prompt.required, *named)
        self.fields: tuple[str, ...] = (*prompt.fields, *named)
        self.whole_row: bool = prompt.whole_row
        # as most are: nothing else is asked for each row
        self._is_plain = not (self._cuts or self._compresses or named)
        self._check_cuts()
        examples = example_messages(spec.examples, self._example)
        self._bodies = RoutedBodies(spec, tally, lambda one: prompt_bodies(one, examples))
        self.route_columns = self._bodies.columns

    def body(self, record: Mapping[str, Any], params: Mapping[str, Any] | None) -> bytes:
        if self._is_plain:
            text = self._rendered(record)
            route, build = self._bodies.of(record, len(text))
            return marked(bounded(build(text, params), self._max_body_bytes), route)
        texts = record if self._media is None else self._media.texts(record, self._prompt.fields)
        row, cut = self._shortened(texts) if self._cuts else (texts, [])
        try:
            text = self._rendered(row)
        except RowFault:
            if self._media is not None:  # what is no picture has no type either, and says more
                self._media.content("", record)
            raise
        sent = compressed(text) if self._compresses else text
        content = sent if self._media is None else self._media.content(sent, record)
        route, build = self._bodies.of(record, len(sent))
        body = marked(bounded(build(content, params), self._max_body_bytes), route)
        if cut or len(sent) < len(text):
            self._tally.note(cut, len(text) - len(sent))
        return body

    def _check_cuts(self) -> None:
        """Raise SpecError for a column that is to be cut and that the prompt does not have.

        Its texts would be sent as they are.
        """
        known = () if self.whole_row else self._prompt.fields
        for name in self._cuts:
            if known and name not in known and name.partition(".")[0] not in known:
                fix = (
                    f"{meant(name, dict.fromkeys(known))}name one of "
                    f"{columns_of(dict.fromkeys(known))}"
                )
                message = f"the prompt has no column {name!r}"
                raise SpecError([Problem("invalid_value", f"/truncate/{name}", message, fix)])

    def _example(self, record: Mapping[str, Any], at: str) -> str:
        """Return the input of an example, as a row's. Raises SpecError."""
        try:
            text = self._rendered(self._shortened(record)[0])
        except RowFault as fault:
            raise SpecError(
                [Problem(fault.code, at, fault.message.rstrip("."), fault.fix)]
            ) from None
        return compressed(text) if self._compresses else text

    def _shortened(self, record: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
        try:
            return shortened(record, self._cuts)
        except NotText as error:
            raise RowFault(
                "truncate_not_text",
                f"The column {error.name!r} is to be cut, and it holds "
                f"{type(error.value).__name__}, not text.",
                fix=Text(
                    "cut lists in the prompt, as {% for one in column[:10] %} (",
                    SetOption("template", "jinja"),
                    "), or give text",
                ),
                field=error.name,
            ) from None

    def _rendered(self, record: Mapping[str, Any]) -> str:
        try:
            return self._prompt.render(record, self._max_body_bytes)
        except TextTooLong as error:
            raise too_large(
                f"more than {error.max_chars} characters", error.max_chars, error.name
            ) from None
        except RenderFailed as failed:
            raise RowFault(
                "template_failed",
                f"The prompt cannot be rendered for this row: {failed}.",
                fix="correct the prompt or the row",
            ) from None
        except MissingField as missing:
            what = "is empty in" if missing.empty else "is missing from"
            raise RowFault(
                MISSING_FIELD,
                f"The prompt uses the column {missing.name!r}, which {what} this row.",
                fix=f"{meant(missing.name, record)}fill it, or write "
                f"{default_in(self._language, missing.name)} in the prompt; columns here: "
                f"{columns_of(record)}",
                field=missing.name,
            ) from None


class MessagesColumn:
    """The messages in a column of each record.

    The job's system message and examples go before them.
    """

    def __init__(self, spec: JobSpec, name: str, max_body_bytes: int, tally: Tally) -> None:
        self._name = name
        self._max_body_bytes = max_body_bytes
        self._tally = tally
        self._compresses = spec.compress_prompt
        examples = example_messages(spec.examples, None)
        self._bodies = RoutedBodies(spec, tally, lambda one: BodyBuilder(one, examples))
        self.required: tuple[str, ...] = (name,)
        self.fields: tuple[str, ...] = (name,)
        self.whole_row = False
        self.route_columns = self._bodies.columns

    def body(self, record: Mapping[str, Any], params: Mapping[str, Any] | None) -> bytes:
        try:
            messages = checked_messages(self._given(record))
            saved = _compress(messages) if self._compresses else 0
            length = _characters(messages) if self._bodies.has_rules else 0
            route, build = self._bodies.of(record, length)
            built = build.of_messages(messages, params)
        except BadMessages as error:
            raise RowFault(
                "invalid_messages",
                error.message,
                fix=error.fix,
                field=f"{self._name}{error.place}",
                value=error.value,
            ) from None
        body = marked(bounded(built, self._max_body_bytes), route)
        if saved:
            self._tally.note((), saved)
        return body

    def _given(self, record: Mapping[str, Any]) -> Any:
        value = record.get(self._name)
        if value is None:
            what = "is null in" if self._name in record else "is missing from"
            raise RowFault(
                MISSING_FIELD,
                f"The column of messages, {self._name!r}, {what} this row.",
                fix=Text(
                    f"{meant(self._name, record)}fill it, or name another column (",
                    SetOption("messages_field"),
                    f"); columns here: {columns_of(record)}",
                ),
                field=self._name,
            )
        return self._parsed(value) if isinstance(value, str) else value

    def _parsed(self, text: str) -> Any:
        try:
            return parse_value(text.encode(errors="surrogatepass"))
        except RowFault as fault:
            raise BadMessages(
                "",
                f"The column holds text that cannot be read as JSON ({fault.code}).",
                _JSON,
                text,
            ) from None


def _characters(messages: list[dict[str, Any]]) -> int:
    """Return how long the texts of all messages are together."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    texts = [*contents, *(part.get("text") for part in parts)]
    return sum(len(text) for text in texts if isinstance(text, str))


def _compress(messages: list[dict[str, Any]]) -> int:
    """Take the blanks out of what users say; returns how many characters that saved."""
    saved = 0
    for message in messages:
        if message["role"] == "user":
            content = message["content"]
            for holder, name in _texts(message, content):
                text = holder[name]
                holder[name] = compressed(text)
                saved += len(text) - len(holder[name])
    return saved


def _texts(message: dict[str, Any], content: Any) -> list[tuple[dict[str, Any], str]]:
    if isinstance(content, str):
        return [(message, "content")]
    return [(part, "text") for part in content if part["type"] == "text"]


_JSON = 'write JSON, such as [{"role": "user", "content": "…"}]'

"""From a document's text to a provider's request body.

A line of a file may name another path than its job does, but only one that every provider of
OpenAI's kind answers jobs on: which others a provider answers, no file may say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from penstock_ledger.texts import SetOption, SetParam, Text
from penstock_producer.dialects.to_anthropic import Conversation, conversation_of, parts_of
from penstock_producer.errors import Problem, SpecError, seen
from penstock_producer.job.endpoints import (
    CHAT,
    CONVERSE,
    EMBEDDINGS,
    GENERATE,
    IMAGE_EDITS,
    OPENAI,
    PATHS_OF_MODELS,
    SCORING,
    TRANSCRIPTIONS,
    UPLOADS,
)
from penstock_producer.job.lanes import can_answer
from penstock_producer.job.params import as_sent, params_of
from penstock_producer.job.response_format import FIELD
from penstock_producer.job.spec import JobSpec
from penstock_producer.job.tiers import TIER_FIELDS
from penstock_producer.prompts.messages import BadMessages, leading_system

__all__ = ["nested_of", "url_refusal"]

# Where the text of a document goes, by the end of the endpoint's path.
_TEXT_FIELDS = {
    "/chat/completions": "messages",
    "/messages": "messages",
    "/generateContent": "contents",
    "/converse": "messages",
    "/completions": "prompt",
    "/responses": "input",
    "/audio/transcriptions": "prompt",
    "/images/generations": "prompt",
    "/images/edits": "prompt",
    "/embeddings": "input",
    "/moderations": "input",
    "/classify": "input",
}
# options that only requests with messages can follow
_OF_CHATS = ("messages_field", "examples", "image_fields", "audio_fields")


def text_field(endpoint: str) -> str | None:
    """Return the field of a request body that holds the text to work on.

    None for endpoints that are not listed here.
    """
    for suffix, field in _TEXT_FIELDS.items():
        if endpoint.endswith(suffix):
            return field
    return None


def is_anthropic(endpoint: str) -> bool:
    """Return whether requests to it are Anthropic's Messages."""
    return endpoint.endswith("/messages")


class Nested(NamedTuple):
    """An API whose requests have parameters in one field, and the model in their path."""

    endpoint: str
    config: str  # the field of the parameters
    beside: Collection[str]  # parameters that stand beside it
    system: Callable[[str], dict[str, Any]]  # the field of a system text
    before: bytes  # what stands between the fields before the document's text and the text itself
    example: str  # of a model's name, in refusals

    def names(self, model: object) -> bool:
        """Return whether a model can be named so."""
        return PATHS_OF_MODELS[self.endpoint](model) is not None

    def placed(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters for its field of them, and those that stand beside it."""
        beside = {name: value for name, value in params.items() if name in self.beside}
        return {name: value for name, value in params.items() if name not in beside}, beside

    def with_params(self, request: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request with these parameters, which go before its own."""
        config, beside = self.placed(params)
        found, own = {**request, **beside}, request.get(self.config, {})
        if config and isinstance(own, dict):
            found[self.config] = {**own, **config}
        return found

    def with_defaults(
        self, given: dict[str, Any], model: str | None, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a body with what the job says where the body does not."""
        own, (config, beside) = given.get(self.config, {}), self.placed(params)
        filled = beside | ({} if model is None else {"model": model}) | given
        if config and isinstance(own, dict):
            filled[self.config] = {**config, **own}
        return filled


_NESTED: Final = (
    Nested(
        GENERATE,
        "generationConfig",
        TIER_FIELDS,
        lambda text: {"systemInstruction": {"parts": [{"text": text}]}},
        b',"contents":[{"role":"user","parts":[{"text":',
        "gemini-2.5-flash or models/gemini-2.5-flash",
    ),
    Nested(
        CONVERSE,
        "inferenceConfig",
        frozenset(params_of(CONVERSE) or ())
        - {"maxTokens", "temperature", "topP", "stopSequences"},
        lambda text: {"system": [{"text": text}]},
        b',"messages":[{"role":"user","content":[{"text":',
        "amazon.nova-lite-v1:0, or that or the ARN of an inference profile",
    ),
)


def nested_of(endpoint: str) -> Nested | None:
    """Return the API of requests to an endpoint, where it is one of these."""
    return next((one for one in _NESTED if endpoint == one.endpoint), None)


def prompt_bodies(
    spec: JobSpec, examples: Sequence[Mapping[str, Any]]
) -> BodyBuilder | NestedBodies:
    """Return what makes the body of each prompt. Raises SpecError."""
    nested = nested_of(spec.endpoint)
    if nested is None:
        return BodyBuilder(spec, examples)
    _checked_field(spec)
    return NestedBodies(spec, nested)


_dump = orjson.dumps


class BodyBuilder:
    """Builds the body for one rendered text.

    Raises SpecError when the spec does not say enough to build one.

    ``examples`` are messages that go before each document.
    """

    def __init__(self, spec: JobSpec, examples: Sequence[Mapping[str, Any]] = ()) -> None:
        field = _checked_field(spec)
        head = {} if spec.model is None else {"model": spec.model}
        tail = spec.sent_params()
        # Where a document may bring its own value, the job's is put in with each, so that no name
        # stands there twice.
        self._defaults = {
            name: tail.pop(name) for name in as_sent(spec.param_fields) if name in tail
        }
        self._system: list[Mapping[str, Any]] = []
        self._examples = examples
        self._files_field = UPLOADS.get(spec.endpoint)
        self._embeds = spec.endpoint == EMBEDDINGS
        self._filled = {**head, **spec.sent_params()}
        self._is_anthropic = is_anthropic(spec.endpoint)
        self._system_text = spec.system
        before, after = b"", b""
        if self._is_anthropic:
            self._examples = _anthropic_examples(examples)
            first = b"".join(_dump(message) + b"," for message in self._examples)
            before, after = b"[" + first + b'{"role":"user","content":', b"}]"
            if spec.system is not None:
                after += b',"system":' + _dump(spec.system)
        elif field == "messages":
            self._system = (
                [] if spec.system is None else [{"role": "system", "content": spec.system}]
            )
            first = b"".join(_dump(message) + b"," for message in (*self._system, *examples))
            before, after = b"[" + first + b'{"role":"user","content":', b"}]"
        elif spec.system is not None:
            tail["instructions"] = spec.system
        self._head = (_dump(head)[:-1] + b"," if head else b"{") + _dump(field) + b":"
        self._tail = b"," + _dump(tail)[1:] if tail else b"}"
        self._before, self._after = self._head + before, after + self._tail

    def __call__(
        self, content: str | list[dict[str, Any]], params: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return the body of one prompt. ``content`` is a text, or the parts of a chat message.

        ``params`` are the document's own, as they are sent.
        """
        if self._files_field is not None:
            return self._with_files(content, params)
        if self._embeds and not isinstance(content, str):
            return self._with_images(content, params)
        if self._is_anthropic:
            content = parts_of(content, "content")
        end = self._end(self._after, params) if params or self._defaults else self._after
        return b"".join((self._before, _dump(content), end))

    def _with_images(
        self, content: list[dict[str, Any]], params: Mapping[str, Any] | None
    ) -> bytes:
        """Return the body that embeds images, as vLLM has it: a chat, the text behind them."""
        parts = [part for part in (*content[1:], content[0]) if part.get("text") != ""]
        messages = [{"role": "user", "content": parts}]
        return _dump({**self._filled, **(params or {}), "messages": messages})

    def _with_files(
        self, content: str | list[dict[str, Any]], params: Mapping[str, Any] | None
    ) -> bytes:
        """Return the body of a form: its text, if any, and the files behind it."""
        parts: list[dict[str, Any]] = (
            [{"type": "text", "text": content}] if isinstance(content, str) else content
        )
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        files = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        told = {"prompt": text} if text else {}
        given: Any = files[0] if len(files) == 1 else files
        return _dump({**self._filled, **(params or {}), **told, self._files_field or "": given})

    def of_messages(
        self, messages: list[dict[str, Any]], params: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return the body for a document that is chat messages.

        The job's own messages go before, examples behind the document's system message.
        """
        if self._is_anthropic:
            return self._of_conversation(conversation_of(messages), params or {})
        first = leading_system(messages)
        whole = [*self._system, *messages[:first], *self._examples, *messages[first:]]
        end = self._end(self._tail, params) if params or self._defaults else self._tail
        return b"".join((self._head, _dump(whole), end))

    def _of_conversation(self, conversation: Conversation, params: Mapping[str, Any]) -> bytes:
        """Return a body of Anthropic's Messages.

        It has one system text, beside the messages: the job's, and behind it the document's.
        """
        texts = [text for text in (self._system_text, conversation.system) if text is not None]
        system = {"system": "\n\n".join(texts)} if texts else {}
        whole = _dump([*self._examples, *conversation.messages])
        return b"".join((self._head, whole, self._end(self._tail, {**params, **system})))

    def _end(self, end: bytes, params: Mapping[str, Any] | None) -> bytes:
        """Return the end with the document's own parameters in the place of the job's."""
        own = {**self._defaults, **(params or {})}
        return end[:-1] + b"," + _dump(own)[1:] if own else end


def _anthropic_examples(examples: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Translate the examples. Raises SpecError for those that Anthropic does not take."""
    try:
        # a system message is none of them: examples.py refuses it
        return conversation_of(examples).messages
    except BadMessages as error:
        raise SpecError(
            [Problem("invalid_value", "/examples", f"{error.place}: {error.message}", error.fix)]
        ) from None


def _checked_field(spec: JobSpec) -> str:
    """Return the field that the text goes to. Raises SpecError."""
    field = text_field(spec.endpoint)
    problem = _problem(spec, field)
    if field is None or problem is not None:
        raise SpecError([problem] if problem is not None else [])
    return field


def _problem(spec: JobSpec, field: str | None) -> Problem | None:
    if field is None:
        known = ", ".join(
            suffix if suffix in SCORING else f"/v1{suffix}" for suffix in _TEXT_FIELDS
        )
        fix = f"prompts go to {known}; send others as OpenAI Batch lines"
        return Problem(
            "invalid_value", "/endpoint", f"a prompt cannot be sent to {spec.endpoint}", fix
        )
    if spec.endpoint in UPLOADS and (problem := _file_problem(spec)) is not None:
        return problem
    nested = nested_of(spec.endpoint)
    if field != "messages" or nested is not None:
        for name in _OF_CHATS:
            if getattr(spec, name) and name != _FILE_FIELDS.get(spec.endpoint, ""):
                why = f"{spec.endpoint} takes no chat messages"
                return Problem(
                    "invalid_value", f"/{name}", why, "use the endpoint /v1/chat/completions"
                )
    if is_anthropic(spec.endpoint):
        if spec.audio_fields:
            fix = "use a provider that takes sounds"
            return Problem(
                "invalid_value", "/audio_fields", "Anthropic's Messages take no sounds", fix
            )
        if spec.params.get("max_tokens") is None:
            why = "Anthropic's Messages say how long an answer may be, and have no default"
            return Problem(
                "missing_field",
                "/params/max_tokens",
                why,
                Text("give it, such as ", SetParam("max_tokens", 1024)),
            )
    if spec.model is None and spec.asks_a_provider:
        fix = Text("name one (", SetOption("model"), ")")
        return Problem("missing_field", "/model", "a prompt needs a model", fix)
    if nested is not None and not nested.names(spec.model):
        fix = f"write its name, such as {nested.example}"
        why = f"{seen(spec.model)} is no name of a model there"
        return Problem("invalid_value", "/model", why, fix)
    if (
        spec.system is not None
        and field != "messages"
        and nested is None
        and not spec.endpoint.endswith("/responses")
    ):
        return Problem(
            "invalid_value",
            "/system",
            f"{spec.endpoint} takes no system text",
            "put it into the prompt",
        )
    return None


_FILE_FIELDS: Final = {
    TRANSCRIPTIONS: "audio_fields",
    IMAGE_EDITS: "image_fields",
    EMBEDDINGS: "image_fields",
}


def _file_problem(spec: JobSpec) -> Problem | None:
    """Return what is wrong with the columns of a form's files; None for those that will do."""
    name = _FILE_FIELDS[spec.endpoint]
    columns = len(getattr(spec, name))
    if columns == 1 or (columns and spec.endpoint == IMAGE_EDITS):
        if spec.prompt is not None or spec.endpoint == TRANSCRIPTIONS:
            return None
        fix = Text("say what to do (", SetOption("prompt"), ")")
        return Problem("missing_field", "/prompt", f"{spec.endpoint} needs a prompt", fix)
    fix = Text("name one column of files (", SetOption(name), ")")
    return Problem("missing_field", f"/{name}", f"{spec.endpoint} sends a file", fix)


class NestedBodies:
    """Builds the body for one rendered text."""

    def __init__(self, spec: JobSpec, nested: Nested) -> None:
        system = {} if spec.system is None else nested.system(spec.system)
        self._head = _dump({"model": spec.model} | system)[:-1] + nested.before
        self._nested, self._params = nested, spec.sent_params()
        self._end = self._of(self._params)

    def __call__(
        self, content: str | list[dict[str, Any]], params: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return the body of one prompt.

        ``content`` is a text. ``params`` are the document's own, as they are sent.
        """
        end = self._of({**self._params, **params}) if params else self._end
        return b"".join((self._head, _dump(content), b"}]}]", end))

    def _of(self, params: Mapping[str, Any]) -> bytes:
        fields = self._nested.with_params({}, params)
        return b"," + _dump(fields)[1:] if fields else b"}"


# whose answers have a text to check
_TEXTS: Final = frozenset({CHAT, "/v1/completions", "/v1/responses"})


def url_refusal(url: Any, spec: JobSpec) -> tuple[str, str] | None:
    """Return why no line of this job may name ``url``, and what to do; None where it may.

    It is not the job's own endpoint."""
    if spec.endpoint not in OPENAI | SCORING or type(url) is not str or url not in OPENAI:
        others = sorted(
            {spec.endpoint} | (OPENAI if spec.endpoint in OPENAI | SCORING else frozenset())
        )
        why = "The url is not one that lines of this job may name."
        return (
            why,
            Text(
                f"write one of {', '.join(others)}, or submit with the endpoint of the lines (",
                SetOption("endpoint"),
                ")",
            ),
        )
    cannot = [lane for lane in spec.permitted_lanes if not can_answer(lane, url)]
    if cannot:
        return (
            f"Lane {cannot[0]} does not answer {url}.",
            "send such lines in a job of their own, for a lane that does",
        )
    if spec.response_schema is not None and url not in _TEXTS:
        fix = "send such lines in a job of their own"
        return (
            f"The job checks answers by a response_schema, and those of {url} have no text to "
            "check.",
            fix,
        )
    return None


def at_endpoint(spec: JobSpec, endpoint: str) -> JobSpec:
    """Return the job as it is for lines that name ``endpoint``.

    Of its parameters they have those that are known there.
    """
    known = params_of(endpoint) or {}
    changes: dict[str, Any] = {
        "endpoint": endpoint,
        "params": {name: value for name, value in spec.params.items() if name in known},
    }
    if FIELD not in known:
        changes["response_format"] = "none"
    return spec.model_copy(update=changes)

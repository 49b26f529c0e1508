"""Prompts of text: chat templates and token ids by the model's own tokenizer. Runs in threads.

A chat template of the operator's own, in place of the model's.

A document may never bring one: see fields.py.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from penstock_producer.errors import seen
from penstock_workers.errors import BadEngineSettings, PackageMissing
from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.gpu.requests.fields import check_tokens

EFFORT: Final = "reasoning_effort"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text that the engine reads."""

    token_ids: list[int]  # all of them: those that stand for images too
    rendered: Any = None  # vLLM's own input, where there is more to it than tokens
    media_bytes: int = 0  # that it holds


class ChatPrompts(Protocol):
    """The way from chats to prompts. Used in several threads."""

    decodes_media: bool
    """Whether a prompt may hold images or sounds."""

    def read(self, body: dict[str, Any]) -> None:
        """Check the messages, and put them into the form that ``prompt`` takes.

        Raises RequestRefused."""

    def prompt(self, body: Mapping[str, Any]) -> Prompt:
        """Make the prompt of a chat.

        Raises RequestRefused where the template refuses these messages."""
        ...


class Tokenizers:
    """The model's tokenizer, for several threads: fast ones refuse to be used by two at once."""

    def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
        """Hold a tokenizer; ``chat_template`` is the operator's, in place of the model's own."""
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self.vocabulary = len(tokenizer)
        self._threads = threading.local()
        self._copying = threading.Lock()

    @property
    def template(self) -> str:
        """The template of chats; empty where neither the operator nor the model has one."""
        return self._chat_template or str(getattr(self._tokenizer, "chat_template", ""))

    def text_of_chat(self, messages: Any, variables: Mapping[str, Any]) -> str:
        """Return the text that the template makes of a chat.

        The template goes with each call: vLLM's tokenizer is a pool of copies. Raises what the
        template raises.
        """
        text: str = self.own().apply_chat_template(
            messages, chat_template=self._chat_template, tokenize=False, **variables
        )
        return text

    def own(self) -> Any:
        """Return this thread's tokenizer."""
        own = getattr(self._threads, "tokenizer", None)
        if own is None:
            with self._copying:
                own = self._threads.tokenizer = copy.deepcopy(self._tokenizer)
        return own

    def token_ids(self, prompt: Any, field: str) -> list[int]:
        """Return the token ids of a text, or of what are token ids already.

        Raises RequestRefused."""
        if isinstance(prompt, str) and prompt:
            return list(self.own()(prompt).input_ids)
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], (str, list)):
            return check_tokens(prompt, field, self.vocabulary)
        raise RequestRefused(
            f"{field} is {type(prompt).__name__}: give one text or one list of token ids per item"
        )


class TextChats:
    """Implements ``ChatPrompts`` for models that take text only."""

    decodes_media = False

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers

    def read(self, body: dict[str, Any]) -> None:
        body["messages"] = [_plain(message, place) for place, message in messages_of(body)]

    def prompt(self, body: Mapping[str, Any]) -> Prompt:
        try:
            variables = template_variables(body, self._tokenizers.template)
            text = self._tokenizers.text_of_chat(body["messages"], variables)
        except RequestRefused:
            raise
        # templates are programs of the model's makers: they raise what they like
        except Exception as error:
            raise RequestRefused(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        return Prompt(list(self._tokenizers.own()(text, add_special_tokens=False).input_ids))


def messages_of(body: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the messages with their places.

    Raises RequestRefused for what is no message."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages is empty or no list: give at least one message")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestRefused(
                f"messages[{place}] is {seen(message)}: give an object with a role and a content"
            )
        yield place, message


def template_variables(body: Mapping[str, Any], template: str) -> dict[str, Any]:
    """Return the variables that the chat template gets.

    Raises RequestRefused for an effort that the model's template would ignore."""
    continued = bool(body.get("continue_final_message", False))
    given = dict(body.get("chat_template_kwargs") or {}) | {
        "add_generation_prompt": body.get("add_generation_prompt", not continued),
        "continue_final_message": continued,
    }
    effort = body.get(EFFORT)
    if effort is None:
        return given
    if EFFORT not in template:
        raise RequestRefused(
            f"{EFFORT} is {seen(effort)}, and this model's chat template does not read it: leave "
            "it out, or give the variable that the template reads in chat_template_kwargs"
        )
    return {EFFORT: effort} | given


def _plain(message: dict[str, Any], place: int) -> dict[str, Any]:
    """Return a message whose content is one text, which is what chat templates of text models take.

    Raises RequestRefused."""
    content = message.get("content")
    if isinstance(content, str):
        return message
    parts = parts_of(content, place)
    texts = [
        text_of(part, f"messages[{place}].content[{number}]") for number, part in enumerate(parts)
    ]
    return message | {"content": "\n".join(texts)}


def parts_of(content: Any, place: int) -> list[Any]:
    """Return the parts of a message's content.

    Raises RequestRefused."""
    if isinstance(content, list):
        return content
    found = "null" if content is None else seen(content)
    raise RequestRefused(f"messages[{place}].content is {found}: give a text")


def text_of(part: Any, field: str) -> str:
    """Return the text of a part that must be text.

    Raises RequestRefused."""
    kind = part.get("type") if isinstance(part, dict) else part
    if kind != "text":
        raise RequestRefused(
            f"{field} is {seen(kind)}, and this model takes text only: leave it out"
        )
    text = part.get("text") if isinstance(part, dict) else part
    if not isinstance(text, str):
        raise RequestRefused(f"{field}.text is {seen(text)}: give a text")
    return text


MAX_BYTES: Final = 1024 * 1024
"""Of a file; templates have some kilobytes, and weights are given by mistake."""
TRIAL: Final = [{"role": "user", "content": "hello"}]


def read_template(given: str | None) -> str | None:
    """Return the text of ``gpu.chat_template``, which is a file or Jinja itself.

    Raises BadEngineSettings where it is no template."""
    if given is None:
        return None
    is_text = "{{" in given or "{%" in given
    template = given if is_text else _content(Path(given).expanduser())
    _compile(template, "the text" if is_text else given)
    return template


def _content(file: Path) -> str:
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise BadEngineSettings(
                f"gpu.chat_template: {file} has {size} bytes, and a template at most {MAX_BYTES}"
            )
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "give a file of Jinja in UTF-8, or the template itself"
        raise BadEngineSettings(
            f"gpu.chat_template: {file} cannot be read ({error}); {fix}"
        ) from error


def _compile(template: str, place: str) -> None:
    """Compile a template by what renders it later, transformers' sandbox.

    One that compiles may refuse the trial's message: others may do."""
    tokenizer = _bare_tokenizer()
    try:
        tokenizer.apply_chat_template(TRIAL, chat_template=template, tokenize=False)
    except Exception as error:  # templates are programs: they raise what they like
        if any(kind.__name__ == "TemplateSyntaxError" for kind in type(error).__mro__):
            line = getattr(error, "lineno", "?")
            raise BadEngineSettings(
                f"gpu.chat_template: {place}, line {line}: {error}; correct the template"
            ) from error


def _bare_tokenizer() -> Any:
    """Make a tokenizer without a model: the check is done before minutes of loading."""
    try:
        tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    except ModuleNotFoundError as error:
        raise PackageMissing("gpu", "vLLM", "gpu") from error  # it brings both
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE())
    )

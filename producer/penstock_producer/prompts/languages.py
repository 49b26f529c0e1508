"""The two languages of prompts: `{column}` and nothing else, or Jinja with loops and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from penstock_producer.prompts.template import Template

__all__ = ["Language", "Prompt", "default_in", "prompt_of"]

Language = Literal["fields", "jinja"]


class Prompt(Protocol):
    """A prompt that can be rendered for records."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that it names."""
        ...

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that every row must have."""
        ...

    @property
    def whole_row(self) -> bool:
        """Return whether it may use columns that it does not name."""
        ...

    def render(self, record: Mapping[str, Any], max_chars: int = ...) -> str:
        """Return the text for one record. Raises MissingField, TextTooLong and RenderFailed."""
        ...


def prompt_of(text: str, language: Language) -> Prompt:
    """Return a prompt in its language. Raises TemplateError.

    Jinja is imported for prompts that are written in it only.
    """
    if language == "fields":
        return Template(text)
    from penstock_producer.prompts.jinja_prompt import JinjaTemplate

    return JinjaTemplate(text)


def default_in(language: Language, name: str) -> str:
    """Return how a prompt names a text for a column that may be absent."""
    return (
        f'{{{name}|default:"none"}}'
        if language == "fields"
        else f'{{{{ {name}|default("none") }}}}'
    )

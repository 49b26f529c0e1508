"""A chat template of the operator's own, in place of the model's.

A document may never bring one: see documents.py."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from penstock_workers.errors import BadEngineSettings, PackageMissing

MAX_BYTES: Final = 1024 * 1024
"""Of a file; templates have some kilobytes, and weights are given by mistake."""
TRIAL: Final = [{"role": "user", "content": "hello"}]


def read_template(given: str | None) -> str | None:
    """The text of ``gpu.chat_template``, which is a file or Jinja itself.

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
    """By what renders it later, transformers' sandbox.

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
    """Without a model: the check is done before minutes of loading."""
    try:
        tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    except ModuleNotFoundError as error:
        raise PackageMissing("gpu", "vLLM", "gpu") from error  # it brings both
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE())
    )

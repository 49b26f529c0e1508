"""The same advice for another surface.

Sentences name flags of the command line, where HTTP requests and pages have fields. They are
written once, with flags; here flags become the names of what they set. Quoted text is a user's own
and stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock_producer.job.options import OPTIONS, RUN_OPTIONS

__all__ = ["in_python", "on_page", "over_http"]

_OF_PROVIDERS: Final = (
    "base_url",
    "api_key_env",
    "profile",
    "rpm",
    "tpm",
    "itpm",
    "otpm",
    "usd_per_mtok_in",
    "usd_per_mtok_out",
)
_COMMAND: Final = r"`?penstock [a-z]+(?: [a-z]+)?`?"  # alone, without arguments
_RULES: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r": penstock resume \S+ --budget-usd (\S+)",
            r"; raise budget_usd to \1 and resume the job",
        ),
        (r" \(penstock dlq replay\)", ""),
        (r" \(penstock status --watch\)", ""),
        (
            r"choose another --name, or remove it first: penstock schedule remove",
            "choose another name, or remove it first",
        ),
        (r", or (?:--[a-z-]+ \S+ )+of `penstock run`", ""),
        (rf"[:;] (?:{_COMMAND} (?:lists|shows|counts|writes) [^;:.]+)", ""),
        (r"\((?:penstock )?dlq replay --set (\w+)=[^)]*\)", r"(overrides.set.\1 of a replay)"),
        (r"--set (\w+)", r"overrides.set.\1"),
        (r"--param (\w+)", r"params.\1"),
    )
)
_OF_A_REPLAY: Final = re.compile(r" \(overrides\.set\.\w+ of a replay\)")
_FLAG: Final = re.compile(r"--([a-z][a-z0-9-]*)")
_SAID_TWICE: Final = re.compile(r"\b(\w+) \(\1\)")
_QUOTED: Final = re.compile(r"('[^'\n]*'|\"[^\"\n]*\")")
_FIELDS: Final = {
    **{option.name: option.field for option in OPTIONS.values()},
    **{name.replace("_", "-"): f"the setting providers.NAME.{name}" for name in _OF_PROVIDERS},
    "concurrency": "the setting concurrency",
}
_KEYWORDS: Final = {
    **{name.replace("_", "-"): name for name in RUN_OPTIONS},
    "out": "state",  # a call has one folder for both
    **{option.name: option.field for option in OPTIONS.values()},
    "job": "job",
}


def over_http(text: str) -> str:
    """Rewrite ``(--param max_tokens=…)`` as ``(params.max_tokens=…)``.

    Flags that set no field of a request and no setting stay.
    """
    return _outside_quotes(text, _FIELDS)


def in_python(text: str) -> str:
    """Return it for a call of `penstock.run`, whose keyword arguments have the flags' names."""
    return _outside_quotes(text, _KEYWORDS).replace("`penstock run`", "`penstock.run`")


def on_page(text: str) -> str:
    """Return the sentence for a page, without fields of a replay's request.

    The page has a form for replays.
    """
    return _OF_A_REPLAY.sub("", over_http(text))


def _outside_quotes(text: str, fields: Mapping[str, str]) -> str:
    parts = _QUOTED.split(text)
    return "".join(
        part if number % 2 else _in_fields(part, fields) for number, part in enumerate(parts)
    )


def _in_fields(text: str, fields: Mapping[str, str]) -> str:
    if "--" not in text and "penstock " not in text:
        return text
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return _SAID_TWICE.sub(r"\1", _FLAG.sub(lambda flag: fields.get(flag[1], flag[0]), text))

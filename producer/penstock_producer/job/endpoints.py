"""Jobs may ask a provider's paths for inference in its dialect, and no others.

Each request carries the fleet's key, so a submitter may not choose any path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal
from urllib.parse import quote

from penstock_ledger.texts import SetOption, Text
from penstock_producer.dialects import (
    CHAT,
    COMPLETIONS,
    CONVERSE,
    GENERATE,
    MESSAGES,
    RESPONSES,
)
from penstock_producer.errors import seen

__all__ = [
    "BASE_URLS",
    "CHAT",
    "COMPLETIONS",
    "CONVERSE",
    "EMBEDDINGS",
    "GENERATE",
    "IMAGES",
    "IMAGE_EDITS",
    "MEDIA",
    "MESSAGES",
    "OPENAI",
    "PATHS_OF_MODELS",
    "RESPONSES",
    "SCORING",
    "TRANSCRIPTIONS",
    "UPLOADS",
    "UPLOAD_BODY_BYTES",
    "Kind",
    "converse_path",
    "generate_path",
]

OPENAI: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/moderations",
        "/v1/responses",
    }
)
TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
IMAGES: Final = "/v1/images/generations"
IMAGE_EDITS: Final = "/v1/images/edits"
UPLOADS: Final[Mapping[str, str]] = {TRANSCRIPTIONS: "file", IMAGE_EDITS: "image"}
"""Paths whose requests are forms with files, each with the field of its files. Until they are sent
they travel as JSON, and the files in them as `data:` addresses."""
MAX_UPLOAD_BYTES: Final = 25 * 1024 * 1024  # of one file: OpenAI's limit, and Ollama's
UPLOAD_BODY_BYTES: Final = MAX_UPLOAD_BYTES * 4 // 3 + 1024 * 1024  # in base64, with its fields
MEDIA: Final = frozenset({IMAGES, *UPLOADS})
"""Answered by providers in real time only, each kind in a job of its own."""
SCORING: Final = frozenset(
    {"/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/classify"}
)
"""As vLLM's server names them. Lanes that host a model answer on them; a provider where its setting
`endpoints` says so."""
# no empty name, none that begins with a dot
_PATH = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*){1,16}", re.ASCII)
_GEMINI = re.compile(r"(?:(?:models|tunedModels)/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", re.ASCII)
EMBEDDINGS = "/v1/embeddings"
# a model, an inference profile, or an ARN (botocore, bedrock-runtime, ConversationalModelId)
_BEDROCK = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9:/_-]|\.(?!\.)){0,2047}", re.ASCII)
MAX_PATH_CHARS = 200
Kind = Literal["openai", "anthropic", "gemini", "bedrock", "vertex"]
"""The API that a provider speaks. OpenAI-compatible servers, which nearly all are, have the
first."""
BASE_URLS: Final[Mapping[str, str]] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
"""Where each kind of provider is, unless its setting `base_url` says another place. Bedrock and
Vertex AI are in regions: see provider_facts.py."""
_BY_KIND: Final[Mapping[Kind, frozenset[str]]] = {
    "openai": OPENAI | MEDIA,
    "anthropic": frozenset({MESSAGES}),
    "gemini": frozenset({GENERATE}),
    "bedrock": frozenset({CONVERSE}),
    "vertex": frozenset({GENERATE}),
}


def check_path(path: str) -> str:
    """Return ``path`` when it is one of plain names between single slashes. Raises ValueError.

    So nothing in it can mean another place, a query, a port, another host or an encoded form of
    these.
    """
    if len(path) > MAX_PATH_CHARS or _PATH.fullmatch(path) is None:
        raise ValueError(
            "write a plain path such as /v1/chat/completions: letters, digits, _ . - between "
            "slashes"
        )
    return path


def generate_path(model: object) -> str | None:
    """Return the path of Gemini's generateContent of a model.

    None for what is no name of one, which could mean another place.
    """
    if not isinstance(model, str) or _GEMINI.fullmatch(model) is None:
        return None
    named = model if "/" in model else f"models/{model}"
    return f"/v1beta/{named}:generateContent"


def converse_path(model: object) -> str | None:
    """Return the path of Bedrock's Converse of a model; None for what is no name of one.

    ARNs have colons and slashes, which are a part of the name here."""
    if not isinstance(model, str) or _BEDROCK.fullmatch(model) is None:
        return None
    return f"/model/{quote(model, safe='')}/converse"


PATHS_OF_MODELS: Final[Mapping[str, Callable[[object], str | None]]] = {
    GENERATE: generate_path,
    CONVERSE: converse_path,
}
"""The path of a model, of the endpoints whose requests name it there and not in the body."""


def refusal(
    endpoint: str, provider: str, extra: Collection[str], kind: Kind = "openai"
) -> str | None:
    """Return why jobs may not send to ``endpoint`` of ``provider``; None when they may.

    ``extra`` is the provider's setting `endpoints`.
    """
    own = _BY_KIND[kind]
    if endpoint in own or endpoint in extra:
        return None
    allowed = ", ".join(sorted(own | set(extra))) or "none"
    others = [other for other, paths in _BY_KIND.items() if endpoint in paths and other != kind]
    kinds = f'providers.{provider}.kind = "{others[0]}"' if others else ""
    hint = f", or say here and for the workers that it is of another kind: {kinds}" if kinds else ""
    of_kind = "" if kind == "openai" else f" of kind {kind}"
    return Text(
        f"endpoint {seen(endpoint)} is not one of those that provider {provider}{of_kind} "
        f"answers jobs on: {allowed}; use one of them (",
        SetOption("endpoint"),
        f"), or have the operator list it in providers.{provider}.endpoints{hint}",
    )

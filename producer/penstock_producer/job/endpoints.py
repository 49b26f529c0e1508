"""Which paths of a provider jobs may ask: inference, by the dialect that the provider speaks, and nothing else.

Each request carries the fleet's key, so a submitter may not choose any path.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from penstock_producer.errors import seen

__all__ = ["BY_KIND", "CHAT", "EMBEDDINGS", "MESSAGES", "SCORING"]

OPENAI: Final = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/moderations", "/v1/responses",
})  # fmt: skip
SCORING: Final = frozenset({"/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/classify"})
"""As vLLM's server names them. Lanes that host a model answer on them; a provider where its setting `endpoints` says so."""
_PATH = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*){1,16}", re.ASCII)  # no empty name, none that begins with a dot
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"  # Anthropic's
EMBEDDINGS = "/v1/embeddings"
MAX_PATH_CHARS = 200
BY_KIND: Final[Mapping[str, frozenset[str]]] = {
    "openai": OPENAI, "anthropic": frozenset({MESSAGES}), "gemini": frozenset(),
}  # fmt: skip
"""What jobs may ask of each kind of provider. Gemini's own API is spoken in batches alone; its address for OpenAI's API is a
provider of the kind openai.
"""


def check_path(path: str) -> str:
    """``path`` when it is one of plain names between single slashes. Raises ValueError.

    So nothing in it can mean another place, a query, a port, another host or an encoded form of these.
    """
    if len(path) > MAX_PATH_CHARS or _PATH.fullmatch(path) is None:
        raise ValueError("write a plain path such as /v1/chat/completions: letters, digits, _ . - between slashes")
    return path


def refusal(endpoint: str, provider: str, extra: Collection[str], kind: str = "openai") -> str | None:
    """Why jobs may not send to ``endpoint`` of ``provider``, whose setting `endpoints` is ``extra``; None when they may."""
    if endpoint in BY_KIND[kind] or endpoint in extra:
        return None
    allowed = ", ".join(sorted(BY_KIND[kind] | set(extra))) or "none"
    speaks = "" if kind == "openai" else f" (kind {kind}: --api {kind} sends what it takes)"
    return (
        f"endpoint {seen(endpoint)} is not one of those that provider {provider}{speaks} answers jobs on: {allowed}; use one of "
        f"them, or have the operator list it in providers.{provider}.endpoints"
    )

"""Gemini's explicit caches: what a call has named is kept until it expires, and read for sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock_simulate.answers import refusals
from penstock_simulate.answers.answers import tokens_of
from penstock_simulate.answers.gemini import text_of
from penstock_simulate.answers.refusals import Refusal

LEAST_TOKENS: Final = 1024  # as real answers say of 3.5 Flash-Lite
USUAL_S: Final = 3600.0  # without a ttl
_HELD: Final = ("systemInstruction", "tools", "toolConfig")


@dataclass(slots=True)
class KeptContent:
    """One cache. Times are seconds of the caller's clock."""

    name: str  # "cachedContents/…"
    display_name: str
    model: str
    tokens: int
    made_at: float
    expires_at: float


class CachedContents:
    """The explicit caches of an account."""

    def __init__(self) -> None:
        self.kept: dict[str, KeptContent] = {}
        self.made = 0

    def expire(self, now: float) -> None:
        for name in [name for name, one in self.kept.items() if one.expires_at <= now]:
            del self.kept[name]

    def make(self, body: Mapping[str, Any], lifetime_s: float, now: float) -> KeptContent | Refusal:
        """Keep what a call names, or refuse it as the provider would."""
        contents = body.get("contents", [])
        text = text_of({**body, "contents": contents})
        tokens = tokens_of(text)
        if tokens < LEAST_TOKENS:
            told = f"total_token_count={tokens}, min_total_token_count={LEAST_TOKENS}"
            return refusals.invalid(f"Cached content is too small. {told}")
        self.made += 1
        name, model = f"cachedContents/kept{self.made:016x}", str(body.get("model"))
        title = str(body.get("displayName", ""))
        made = KeptContent(name, title, model, tokens, now, now + lifetime_s)
        self.kept[name] = made
        return made


def refusal_of(body: Mapping[str, Any], kept: KeptContent | None, model: str) -> Refusal | None:
    """Return why a request cannot be behind a cache; one that is gone is forbidden, not missing."""
    if kept is None:
        told = "CachedContent not found (or permission denied)"
        return Refusal(403, told, "invalid_request_error", "permission_denied")
    if kept.model.removeprefix("models/") != model.removeprefix("models/"):
        return refusals.invalid(f"Model used by GenerateContent request ({model}) differs from it")
    if any(name in body for name in _HELD):
        return refusals.invalid(
            "CachedContent can not be used with GenerateContent request setting "
            "system_instruction, tools or tool_config."
        )
    return None

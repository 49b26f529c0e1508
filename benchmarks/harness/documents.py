"""The requests that every contender sends.

Needs nothing but Python: peers send them from environments of their own."""

from __future__ import annotations

# 432 characters, a short document
TEXT = "The quick brown fox jumps over the lazy dog near the bank of the river. " * 6


def doc_id(n: int) -> str:
    return f"document-{n:07d}"


def request_body(n: int) -> dict[str, object]:
    message = {"role": "user", "content": f"Summarise in one sentence: [{n}] {TEXT}"}
    return {"model": "sim-small", "messages": [message], "max_tokens": 32, "temperature": 0}

"""How large one document may be, unless the settings `max_line_bytes` and `max_body_bytes` say
otherwise."""

from __future__ import annotations

from typing import Final

DEFAULT_MAX_LINE_BYTES: Final = (
    8 * 1024 * 1024
)  # above any model's context, below what hurts a small machine
# A template may name a column twice; named more often, a short row would fill any memory.
DEFAULT_MAX_BODY_BYTES: Final = 16 * 1024 * 1024

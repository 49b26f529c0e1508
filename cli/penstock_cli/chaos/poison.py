"""Hooks for jobs of `penstock chaos`: one document ends the process that works on it."""

from __future__ import annotations

import os
from typing import Any

DEADLY = "doc-30"


def die_before(item: Any) -> Any:
    """End the process before the call of one document."""
    if item.doc_id == DEADLY:
        os._exit(3)
    return item


def die_after(item: Any, response: Any) -> Any:
    """End the process after the call of one document, which is paid for."""
    if item.doc_id == DEADLY:
        os._exit(3)
    return response

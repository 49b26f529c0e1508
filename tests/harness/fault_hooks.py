"""Hooks for the table of faults: one document's end their process."""

from __future__ import annotations

import os
from typing import Any

DEADLY = "doc-30"


def die_before(item: Any) -> Any:
    if item.doc_id == DEADLY:
        os._exit(3)
    return item


def die_after(item: Any, response: Any) -> Any:
    if item.doc_id == DEADLY:
        os._exit(3)
    return response

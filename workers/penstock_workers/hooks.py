"""A job's author imports from here: ``from penstock_workers.hooks import Invalid``.

Beside it: hooks and answer schemas.

A job's own functions around inference, named in its spec by import path:
`package.module:function`.

``preprocess(item) -> item`` sees each request before it is sent; ``postprocess(item, response) ->
response | Invalid`` each answer before it is stored. Either may be ``async``. They run in processes
apart from the worker (docs/hooks.md): a hook that fails, ends its process or never returns affects
its own item only.

This module is what hooks import, so it imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Invalid", "Item"]


@dataclass(slots=True)
class Item:
    """One document as hooks see it.

    ``body`` is the request body, parsed; change it in place or return a new item."""

    job_id: str
    generation: int
    doc_id: str
    endpoint: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Invalid:
    """Returned by ``postprocess``: the answer is not usable.

    The item is retried as its job allows, unless ``retry`` is off."""

    reason: str
    retry: bool = True

"""The names of queues: one per lane, and in lanes whose workers host a model one more for each
model.

Models are named by paths, hub ids or `s3://` addresses, in files that come from strangers. A
queue's name is made of safe characters only, is bounded, and differs for different models. The
chart makes the same names (templates/_queues.tpl): the autoscaler counts these queues.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from penstock_ledger.keys import QUEUE_PREFIX
from penstock_producer.job.lanes import has_own_model

__all__ = ["model_queues", "queue_name"]

SAFE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
"""Models of such a name are written as they are. A `~` is in none of them, so no such name looks
like a digest."""
SHOWN_CHARS: Final = 40
"""The last characters of any other name that are shown before its digest."""
DIGEST_CHARS: Final = 16
"""Of SHA-256, in hexadecimal digits: two models of one fleet do not share them by chance."""
NAMES_KEPT: Final = 256
"""Names whose queues stay computed: feeders ask once per document."""


def queue_name(lane: str, model: str | None = None) -> str:
    """The queue of a lane, or of a model in it.

    Lanes without models of their own have one queue for all."""
    if model is None or not has_own_model(lane):
        return f"{QUEUE_PREFIX}{lane}"
    return f"{QUEUE_PREFIX}{lane}.{_safe(model)}"


def model_queues(lane: str, names: Iterable[str]) -> list[str]:
    """The queues of a model by all its names, in their order."""
    return list(dict.fromkeys(queue_name(lane, name) for name in names))


@lru_cache(maxsize=NAMES_KEPT)
def _safe(model: str) -> str:
    if SAFE.fullmatch(model) is not None:
        return model
    digest = hashlib.sha256(model.encode(errors="surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return re.sub(r"[^A-Za-z0-9._-]", "_", model[-SHOWN_CHARS:], flags=re.ASCII) + "~" + digest

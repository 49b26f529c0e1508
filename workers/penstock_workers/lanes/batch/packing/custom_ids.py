"""The ids of documents as providers take them: `[A-Za-z0-9_-]`, and not longer than the dialect
allows."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_DIGEST: Final = "h-"
_DIGEST_BYTES: Final = 16  # 128 bits: two documents of one job do not share them by chance


def custom_id(doc_id: str, most: int) -> str:
    """The document id itself where a provider takes it, else a digest; no id of a document looks
    like a digest."""
    if (
        len(doc_id) <= most
        and _SAFE.fullmatch(doc_id) is not None
        and not doc_id.startswith(_DIGEST)
    ):
        return doc_id
    digest = hashlib.sha256(doc_id.encode(errors="surrogatepass")).digest()[:_DIGEST_BYTES]
    return _DIGEST + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

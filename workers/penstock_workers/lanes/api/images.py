"""Images that answers hold become objects: a result names each, with its digest and its size.

They lie below the setting `images_url`, or `results_url`, in a folder of their job, under their
digest: the same image again is the same object. An image that an answer has at an address is
fetched at once, since providers keep it for an hour.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from msgspec.structs import replace

from penstock_ledger.lone_surrogates import parse_json
from penstock_producer.errors import SinkError
from penstock_producer.job.endpoints import IMAGE_EDITS, IMAGES
from penstock_producer.public_hosts import NotFetched, fetch
from penstock_producer.sources.forms.media import kind_of
from penstock_producer.storage import open_sink
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.settings import ProviderSettings

log = logging.getLogger(__name__)

MAX_IMAGE_BYTES: Final = 64 * 1024 * 1024  # of one that is fetched
TRIES: Final = 6  # to store or fetch an image that is paid for: half a minute of trouble
FIRST_WAIT_S: Final = 1.0
_ENDPOINTS: Final = frozenset({IMAGES, IMAGE_EDITS})
_NO_PLACE: Final = (
    b'{"error":{"message":"this worker has no place for images, and nothing was sent: set '
    b'images_url or results_url, a folder or s3://bucket/prefix"}}'
)


class ImageStore:
    """Keeps the images of answers below ``place``; None where none is set."""

    def __init__(
        self,
        place: str | None,
        providers: Mapping[str, ProviderSettings],
        s3_endpoint_url: str | None = None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._place = None if place is None else place.rstrip("/")
        self._providers = providers
        self._s3_endpoint_url = s3_endpoint_url
        self._first_wait_s = first_wait_s

    def prepared(self, request: Request) -> Prepared:
        """Return what is asked; the refusal where its images could not be kept."""
        if self._place is None and request.endpoint in _ENDPOINTS:
            return Prepared(request, refused=Answer(400, {}, _NO_PLACE, 0))
        return Prepared(request)

    async def kept(self, request: Request, tried: Tried) -> Tried:
        """Return an answer with objects in the place of its images; every other as it is.

        Where they cannot be stored the call has failed, and costs what its answer says."""
        if request.endpoint not in _ENDPOINTS or not isinstance(tried, Answer):
            return tried
        try:
            answer: Any = parse_json(tried.body) if tried.status == 200 else None
        except orjson.JSONDecodeError:
            return tried
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return tried
        try:
            kept = [await self._row(request, row) for row in rows]
        except (SinkError, NotFetched, ValueError) as error:
            cost = {name: answer.get(name) for name in ("model", "usage")}
            told = f"the images are made, and cannot be kept: {error}"
            return NoAnswer("unexpected_error", told, tried.latency_ms, cut=cost)
        body = orjson.dumps({**answer, "data": kept})
        if tried.room is not None:
            tried.room.shrink(min(len(body), tried.room.size))
        return replace(tried, body=body)

    async def _row(self, request: Request, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a result holds of one image. Raises SinkError, NotFetched, ValueError."""
        told = {name: value for name, value in row.items() if name not in ("b64_json", "url")}
        for wait_s in (self._first_wait_s * 2**tried for tried in range(TRIES - 1)):
            try:
                return {**told, **await asyncio.to_thread(self._store, request, row)}
            except (SinkError, NotFetched) as error:
                log.warning("an image waits: %s; next try in %.0f s", error, wait_s)
                await asyncio.sleep(wait_s)
        return {**told, **await asyncio.to_thread(self._store, request, row)}

    def _store(self, request: Request, row: Mapping[str, Any]) -> dict[str, Any]:
        data = self._data(request, row)
        kind, digest = kind_of(data), hashlib.sha256(data).hexdigest()
        job = request.tag.partition(":")[0]
        folder = f"{self._place}/{job}"
        sink = open_sink(folder, s3_endpoint_url=self._s3_endpoint_url)
        writer = sink.create(f"{digest}.{'bin' if kind is None else kind.name}")
        try:
            writer.write(data)
            writer.finish()
            place = writer.publish()
        except BaseException:
            writer.discard()
            raise
        media_type = "application/octet-stream" if kind is None else kind.media_type
        return {"object": place, "sha256": digest, "bytes": len(data), "type": media_type}

    def _data(self, request: Request, row: Mapping[str, Any]) -> bytes:
        inside, url = row.get("b64_json"), row.get("url")
        if isinstance(url, str) and url.startswith("data:"):
            inside = url.partition(",")[2]
        if isinstance(inside, str) and inside:
            return base64.b64decode(inside, validate=True)
        if not isinstance(url, str):
            raise ValueError("one has neither b64_json nor a url")
        own = urlsplit(self._providers[request.provider].base_url).hostname
        return fetch(url, MAX_IMAGE_BYTES, () if own is None else (own,))

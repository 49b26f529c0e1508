"""An object of Google Cloud Storage (`gs://`) or Azure (`az://`) as a pinned blob.

It is read by obstore, as s3.py does it by boto3.

obstore is imported when the first object is opened: it is an extra (`pip install
penstock[stores]`). Credentials, the account and another endpoint come from the environment, as
obstore names them: GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME,
AZURE_STORAGE_ENDPOINT and so on. Without credentials those of the machine are looked for. An
endpoint without TLS needs GOOGLE_ALLOW_HTTP=true or AZURE_ALLOW_HTTP=true.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from penstock_producer.bucket.place import STORES, store_at
from penstock_producer.errors import SourceError, SourceUnavailable, seen
from penstock_producer.sources.blobs.s3 import TRIES, Listed, RangedObject, Version, another_object

SCHEMES: Final = STORES  # also the kinds of their pins
_PAGE: Final = 1_000


class StoreObject(RangedObject):
    """One object of Google Cloud Storage or Azure."""

    def __init__(
        self, uri: str, pinned: Mapping[str, Any] | None = None, *, store: Any = None
    ) -> None:
        scheme, bucket, self._key = _parts(uri)
        super().__init__(scheme, uri, pinned)
        if not self._key:
            raise SourceError(
                "source_unavailable", f"{seen(uri)} names no object; write {scheme}://bucket/key"
            )
        self._store = open_store(scheme, bucket) if store is None else store

    def _version(self) -> Version:
        import obstore

        options: Any = {"head": True}
        answer = ask(self.uri, lambda: obstore.get(self._store, self._key, options=options))
        self._refuse_encoded(answer)
        found = _listed(answer.meta, "")
        return Version(found.size, found.etag)

    def _range(self, offset: int, length: int, etag: str) -> bytes:
        import obstore

        # A service that does not know the condition is held to it by what it answers.
        options: Any = {"range": (offset, offset + length), "if_match": f'"{etag}"'}

        def get() -> tuple[str, bytes]:
            answer = obstore.get(self._store, self._key, options=options)
            self._refuse_encoded(answer)
            return _tag(answer.meta), bytes(answer.bytes())

        tag: str
        data: bytes
        tag, data = ask(self.uri, get)
        if tag != etag:
            raise another_object(self.uri)
        if len(data) != length:
            raise self._encoded()
        return data

    def _refuse_encoded(self, answer: Any) -> None:
        """Raise SourceError for an object that Google unpacks on its way.

        It does so where the object's attribute says gzip, whatever it holds: then sizes and ranges
        mean nothing.
        """
        if answer.attributes.get("Content-Encoding", "identity").lower() not in ("", "identity"):
            raise self._encoded()

    def _encoded(self) -> SourceError:
        clear = (
            f"gcloud storage objects update {self.uri} --clear-content-encoding"
            if self._kind == "gs"
            else f"az storage blob update --content-encoding '' for {self.uri}"
        )
        return SourceError(
            "content_encoding",
            f"{self.uri} has the attribute Content-Encoding, by which stores and clients unpack it "
            "on its way, so that its size and places in it are others than those listed; clear it: "
            f"{clear}. A name that ends in .gz or .zst says that it is packed",
        )


class StorePrefix:
    """`gs://bucket/prefix` or `az://container/prefix`, with all objects below `prefix/`."""

    def __init__(self, uri: str, *, store: Any = None) -> None:
        self._scheme, self._bucket, prefix = _parts(uri)
        self._below = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.uri = f"{self._scheme}://{self._bucket}/{self._below}"
        self._store = open_store(self._scheme, self._bucket) if store is None else store

    def listed(self, after: str = "") -> Iterator[Listed]:
        """Yield the objects later than ``after``, in the order in which the service lists them.

        That is the order of their names.
        """
        import obstore

        given: dict[str, Any] = {"offset": f"{self._below}{after}"} if after else {}
        prefix = self._below.rstrip("/") or None
        pages = iter(
            ask(self.uri, lambda: obstore.list(self._store, prefix, chunk_size=_PAGE, **given))
        )
        while True:
            page = ask(self.uri, lambda: next(pages, None))
            if page is None:
                return
            for meta in page:
                yield _listed(meta, self._below)

    def object(self, listed: Listed) -> StoreObject:
        """Return an object, pinned to what was listed."""
        uri = f"{self._scheme}://{self._bucket}/{quote(self._below + listed.path)}"
        pinned = {"kind": self._scheme, "uri": uri, "size": listed.size, "etag": listed.etag}
        return StoreObject(uri, pinned, store=self._store)


def open_store(scheme: str, bucket: str) -> Any:
    """Open a bucket or container.

    Raises SourceUnavailable without obstore, and where the environment has no account.
    """
    try:
        return ask(f"{scheme}://{bucket}", lambda: store_at(scheme, bucket, tries=TRIES))
    except ImportError as error:
        raise SourceUnavailable(
            f"reading {scheme}:// needs obstore on this machine; `pip install penstock[stores]`"
        ) from error


def ask(uri: str, request: Callable[[], Any]) -> Any:
    """Return the answer to a request.

    Raises SourceChanged for a tag that is another one by now, SourceUnavailable for all else.
    """
    from obstore.exceptions import BaseError, PreconditionError

    try:
        return request()
    except PreconditionError as error:
        raise another_object(uri) from error
    except FileNotFoundError as error:
        raise SourceUnavailable(f"{uri}: there is no such object; check the name") from error
    except (BaseError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise SourceUnavailable(
            f"{uri}: {reason}; check the endpoint, account and credentials"
        ) from error


def _parts(uri: str) -> tuple[str, str, str]:
    """Return scheme, bucket and key. Raises SourceError."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise SourceError(
            "invalid_uri", f"{seen(uri)} is not an address ({error}); write gs://bucket/key"
        ) from None
    if parts.scheme not in SCHEMES or not parts.netloc or parts.query or parts.fragment:
        raise SourceError(
            "invalid_uri",
            f"{seen(uri)} names no bucket; write gs://bucket/key or az://container/key",
        )
    return parts.scheme, parts.netloc, unquote(parts.path.removeprefix("/"))


def _listed(meta: Mapping[str, Any], below: str) -> Listed:
    changed: datetime.datetime = meta["last_modified"]
    return Listed(
        str(meta["path"])[len(below) :], int(meta["size"]), _tag(meta), changed.timestamp()
    )


def _tag(meta: Mapping[str, Any]) -> str:
    """Return the tag of an object. Raises SourceError where a service gives none.

    Nothing would tell its objects from others then.
    """
    tag = meta.get("e_tag") or meta.get("version")
    if not tag:
        raise SourceError(
            "unsupported_source", f"{meta['path']} has no ETag, by which it would be known again"
        )
    # Azure's lists leave the quotes out, which are a part of the tag in HTTP
    return str(tag).strip('"')

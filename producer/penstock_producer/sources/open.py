"""From a path, a URI or a stored pin to a source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock_producer.errors import SourceError
from penstock_producer.settings import DEFAULT_MAX_LINE_BYTES, ProducerSettings
from penstock_producer.sources import local, s3
from penstock_producer.sources.blob import Blob
from penstock_producer.sources.jsonl import JsonlSource
from penstock_producer.spec import JobSpec

_OTHER_FORMATS = (".csv", ".tsv", ".parquet", ".xlsx")


def open_source(
    where: str | Path | Mapping[str, Any], spec: JobSpec, settings: ProducerSettings | None = None
) -> JsonlSource:
    """A JSONL source from a path, an `s3://` URI, or the pin that the ledger stored. Nothing is read yet.

    Raises SourceError for what is no JSONL file and SpecError when the spec cannot make requests of its rows.
    """
    endpoint_url = None if settings is None else settings.s3_endpoint_url
    if isinstance(where, Mapping):
        return JsonlSource(_blob_of_pin(where, endpoint_url), spec, max_line_bytes=int(where["max_line_bytes"]))
    limit = DEFAULT_MAX_LINE_BYTES if settings is None else settings.max_line_bytes
    return JsonlSource(_blob_of_uri(str(where), endpoint_url), spec, max_line_bytes=limit)


def unchanged(pin: Mapping[str, Any], where: str | Path, settings: ProducerSettings | None = None) -> bool:
    """Whether ``where`` is plainly still what was pinned: same place, size and time (or ETag). Reads no content."""
    blob = _blob_of_uri(str(where), None if settings is None else settings.s3_endpoint_url)
    if blob.uri != pin.get("uri"):
        return False
    pinned = _blob_of_pin(pin, None if settings is None else settings.s3_endpoint_url)
    return pinned.unchanged()


def _blob_of_pin(pin: Mapping[str, Any], endpoint_url: str | None) -> local.LocalFile | s3.S3Object:
    if pin["kind"] == local.KIND:
        return local.LocalFile(pin["uri"], pin)
    if pin["kind"] == s3.KIND:
        return s3.S3Object(pin["uri"], pin, endpoint_url=endpoint_url)
    raise SourceError("unsupported_source", f"this release cannot read sources of kind {pin['kind']!r}; upgrade it")


def _blob_of_uri(uri: str, endpoint_url: str | None) -> Blob:
    if uri.lower().endswith(_OTHER_FORMATS):
        raise SourceError("unsupported_format", f"{uri}: only JSONL is read; convert it to one JSON object per line")
    scheme = urlsplit(uri).scheme if "://" in uri else ""
    if scheme == "s3":
        return s3.S3Object(uri, endpoint_url=endpoint_url)
    if scheme == "file":
        return local.LocalFile(unquote(urlsplit(uri).path))
    if scheme:
        raise SourceError("unsupported_source", f"{uri}: sources are local files and s3:// objects; copy it to one")
    return local.LocalFile(uri)

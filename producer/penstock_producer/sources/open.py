"""From a path, a URI or a stored pin to a source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock_producer.errors import SourceError, seen
from penstock_producer.job.sizes import DEFAULT_MAX_BODY_BYTES
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.source_roots import SourceRoots
from penstock_producer.sources import local, s3
from penstock_producer.sources.blob import Blob, TimedBlob
from penstock_producer.sources.convert import refuse_ending
from penstock_producer.sources.jsonl import JsonlSource

_DEFAULTS = ProducerSettings.model_construct()  # nothing is read from the environment


DOOR = "door"  # of a pin: the kind of door that the job came through, where it is not a trusted one
REMOTE = "remote"  # a remote one: its source is read from inside `source_roots` only, at submit and ever after


def open_source(
    where: str | Path | Mapping[str, Any],
    spec: JobSpec,
    settings: ProducerSettings | None = None,
    *,
    remote: bool = False,
    timeout_s: float | None = None,
) -> JsonlSource:
    """A JSONL source from a path, an `s3://` URI, or the pin that the ledger stored. Nothing is read yet.

    With ``timeout_s`` reading it raises SourceError once that many seconds are over. ``remote`` confines a path or URI to
    the setting `source_roots`; of a pin, its own word counts. Raises SourceError for
    what is not a JSONL file, and SpecError when the spec cannot make requests of its rows.
    """
    chosen = settings or _DEFAULTS
    if isinstance(where, Mapping):
        return JsonlSource(
            _blob_of_pin(where, chosen),
            spec,
            max_line_bytes=int(where["max_line_bytes"]),
            max_body_bytes=int(where.get("max_body_bytes", DEFAULT_MAX_BODY_BYTES)),
            surveyed=True,
        )
    blob = _blob_of_uri(str(where), chosen, SourceRoots(chosen.source_roots) if remote else None)
    if timeout_s is not None:
        blob = TimedBlob(blob, timeout_s)
    return JsonlSource(blob, spec, max_line_bytes=chosen.max_line_bytes, max_body_bytes=chosen.max_body_bytes)


def unchanged(pin: Mapping[str, Any], where: str | Path, settings: ProducerSettings | None = None) -> bool:
    """Whether ``where`` is plainly still what was pinned: same place, size and time (or ETag). Reads no content."""
    chosen = settings or _DEFAULTS
    if _blob_of_uri(str(where), chosen, None).uri != pin.get("uri"):
        return False
    return _blob_of_pin(pin, chosen).unchanged()


def _blob_of_pin(pin: Mapping[str, Any], settings: ProducerSettings) -> local.LocalFile | s3.S3Object:
    roots = SourceRoots(settings.source_roots) if pin.get(DOOR) == REMOTE else None
    if pin["kind"] == local.KIND:
        return local.LocalFile(pin["uri"], pin, roots=roots)
    if pin["kind"] == s3.KIND:
        if roots is not None:
            roots.admit(pin["uri"])
        return s3.S3Object(pin["uri"], pin, endpoint_url=settings.s3_endpoint_url)
    raise SourceError("unsupported_source", f"this release cannot read sources of kind {pin['kind']!r}; upgrade it")


def _blob_of_uri(uri: str, settings: ProducerSettings, roots: SourceRoots | None) -> Blob:
    if roots is not None:
        roots.admit(uri)
    refuse_ending(uri)
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return local.LocalFile(uri, roots=roots)
    if scheme == "s3":
        return s3.S3Object(uri, endpoint_url=settings.s3_endpoint_url)
    if scheme == "file":
        return local.LocalFile(unquote(urlsplit(uri).path))
    raise SourceError("unsupported_source", f"{seen(uri)}: sources are local files and s3:// objects; copy it to one")

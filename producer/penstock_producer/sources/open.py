"""From a path, a URI or a stored pin to a source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import unquote, urlsplit

from penstock_producer.errors import SourceError, seen
from penstock_producer.job.formats import COLUMNAR, CSV, JSONL, TSV
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import FileSource
from penstock_producer.settings import ProducerSettings
from penstock_producer.sizes import DEFAULT_MAX_BODY_BYTES
from penstock_producer.source_roots import SourceRoots
from penstock_producer.sources import several
from penstock_producer.sources.blobs import local, s3
from penstock_producer.sources.blobs.blob import Blob, TimedBlob
from penstock_producer.sources.blobs.convert import refuse_ending
from penstock_producer.sources.blobs.unpacked import Unpacked
from penstock_producer.sources.expand import expand
from penstock_producer.sources.media.places import NEWEST, MediaPlaces, places_of
from penstock_producer.sources.readers.columnar_source import ColumnarSource
from penstock_producer.sources.readers.csv_source import CsvSource
from penstock_producer.sources.readers.file_format import FileFormat, format_of, format_of_pin
from penstock_producer.sources.readers.jsonl import JsonlSource

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
) -> FileSource:
    """The source at a path, an `s3://` URI, a folder or prefix ending in `/`, a pattern, or the pin that the ledger stored.

    Of its content at most the first bytes are read, where its name does not say what it is. With ``timeout_s`` reading it
    raises SourceError once that many seconds are over. ``remote`` confines a path or URI to the setting `source_roots`; of
    a pin, its own word counts. Raises SourceError for what cannot be a source, and SpecError when the spec cannot make
    requests of its rows.
    """
    chosen = settings or _DEFAULTS
    if isinstance(where, Mapping):
        return _of_pin(where, spec, chosen)
    files = None if remote else expand(str(where), chosen.s3_endpoint_url)
    if files is None:
        blob = _blob_of_uri(str(where), chosen, SourceRoots(chosen.source_roots) if remote else None)
        return _of_blob(blob, spec, chosen, timeout_s, remote=remote)
    blobs = (
        s3.S3Object(file.uri, file.pin, endpoint_url=chosen.s3_endpoint_url) if file.pin else local.LocalFile(file.uri)
        for file in files
    )
    return several.SeveralFiles(str(where), [_of_blob(blob, spec, chosen, timeout_s) for blob in blobs])


def unchanged(pin: Mapping[str, Any], where: str | Path, settings: ProducerSettings | None = None) -> bool:
    """Whether ``where`` is plainly still what was pinned: same place, size and time (or ETag). Reads no content."""
    chosen = settings or _DEFAULTS
    if pin["kind"] == several.KIND:
        files = expand(str(where), chosen.s3_endpoint_url) or ()
        pins = pin[several.FILES]
        return [file.uri for file in files] == [one["uri"] for one in pins] and all(
            _blob_of_pin(one, chosen).unchanged() for one in pins
        )
    if expand(str(where), chosen.s3_endpoint_url) is not None or _blob_of_uri(str(where), chosen, None).uri != pin.get(
        "uri"
    ):
        return False
    return _blob_of_pin(pin, chosen).unchanged()


def _of_blob(
    blob: Blob, spec: JobSpec, settings: ProducerSettings, timeout_s: float | None, *, remote: bool = False
) -> FileSource:
    """What is submitted now."""
    found = format_of(blob, spec.format)
    plain: Blob = blob if found.packed is None else Unpacked(blob, found.packed)
    timed: Blob = plain if timeout_s is None else TimedBlob(plain, timeout_s)
    places = MediaPlaces() if remote else places_of(blob.uri, settings, None)
    return _rows(timed, found, spec, (settings.max_line_bytes, settings.max_body_bytes), None, places)


def _of_pin(pin: Mapping[str, Any], spec: JobSpec, settings: ProducerSettings, *, remote: bool = False) -> FileSource:
    remote = remote or pin.get(DOOR) == REMOTE
    if pin["kind"] == several.KIND:
        files = [_of_pin(one, spec, settings, remote=remote) for one in pin[several.FILES]]
        return several.SeveralFiles(str(pin["uri"]), files)
    found = format_of_pin(pin)
    blob: Blob = _blob_of_pin(pin, settings)
    plain: Blob = blob if found.packed is None else Unpacked(blob, found.packed, pin)
    limits = int(pin["max_line_bytes"]), int(pin.get("max_body_bytes", DEFAULT_MAX_BODY_BYTES))
    places = MediaPlaces() if remote else places_of(blob.uri, settings, int(pin.get(NEWEST, 0)))
    return _rows(plain, found, spec, limits, int(pin["size"]), places)


def _rows(
    blob: Blob,
    found: FileFormat,
    spec: JobSpec,
    limits: tuple[int, int],
    size: int | None,
    places: MediaPlaces,
) -> FileSource:
    """``size``: of the pinned file; None for one that is submitted now."""
    common = _Common(max_line_bytes=limits[0], max_body_bytes=limits[1], surveyed=size is not None, places=places)
    if found.rows == JSONL:
        return JsonlSource(blob, spec, **common)
    if found.rows in (CSV, TSV):
        return CsvSource(blob, spec, tabs=found.rows == TSV, **common)
    if found.rows in COLUMNAR:
        return ColumnarSource(blob, spec, found.rows, size=size, **common)
    raise SourceError("unsupported_format", f"this release cannot read {found.rows}: {blob.uri}; upgrade it")


class _Common(TypedDict):
    """What readers of all formats take."""

    max_line_bytes: int
    max_body_bytes: int
    surveyed: bool
    places: MediaPlaces


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

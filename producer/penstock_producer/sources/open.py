"""From a path, a URI or a stored pin to a source."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceChanged, SourceError, SourceForbidden, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import (
    DOOR,
    FILES,
    FORMAT,
    MEDIA_NEWEST,
    REMOTE,
    SKIPPED,
    UPLOADED,
    shown_uri,
)
from penstock_producer.rows import DEFAULT_MAX_BODY_BYTES, RowSource
from penstock_producer.settings import ProducerSettings
from penstock_producer.source_formats import FORMATS, JSONL, XLSX, SourceFormat, is_database
from penstock_producer.source_roots import SourceRoots
from penstock_producer.sources import several
from penstock_producer.sources.blobs import local, s3, store
from penstock_producer.sources.blobs.blob import Blob, TimedBlob
from penstock_producer.sources.blobs.detect import (
    cannot_open,
    format_of,
    has_rows,
    is_text,
    refuse_ending,
    refuse_kind,
)
from penstock_producer.sources.blobs.unpacked import PACKED, Unpacked
from penstock_producer.sources.databases.address import KIND as TABLE
from penstock_producer.sources.databases.address import address_of, whole
from penstock_producer.sources.forms.media_places import MediaPlaces, places_of
from penstock_producer.sources.listings.chosen import ROWS, Chosen, choose
from penstock_producer.sources.listings.listing import ListedFiles
from penstock_producer.sources.listings.new_files import Taken, new_files, row_files
from penstock_producer.sources.readers import whole_files
from penstock_producer.sources.readers.rows import RowOptions

_DEFAULTS = ProducerSettings.model_construct()  # nothing is read from the environment


def open_source(
    where: str | Path | Mapping[str, Any],
    spec: JobSpec,
    settings: ProducerSettings | None = None,
    *,
    remote: bool = False,
    uploaded: bool = False,
    formats: Collection[str] | None = None,
    timeout_s: float | None = None,
) -> RowSource:
    """Return the source at a path, a URI, a folder, a pattern, or the pin that the ledger stored.

    A folder or prefix ends in `/`. The URL of a database is read by the spec's table or query.

    Of its content at most the first bytes are read, where its name does not say what it is. With
    ``timeout_s`` reading it raises SourceError once that many seconds are over. ``uploaded`` is a
    file that a remote door has written; its rows name no other files. ``remote`` confines a path or
    URI to the setting `source_roots`; a pin says by itself whether it is confined. ``formats`` are
    those that a remote door reads; None: all. Raises SourceError for what cannot be a source, and
    SpecError when the spec cannot make requests of its rows.
    """
    chosen = settings or _DEFAULTS
    if isinstance(where, Mapping):
        return _of_pin(where, spec, chosen)
    if is_database(str(where)):
        return _of_database(str(where), spec, chosen, remote, timeout_s)
    named = shown_uri({DOOR: UPLOADED, "uri": str(where)}) if uploaded else str(where)
    if spec.table is not None or spec.query is not None:
        raise SourceError(
            "unsupported_source",
            Text(
                f"{seen(named)} is no database, and ",
                SetOption("table"),
                " and ",
                SetOption("query"),
                " read one; name it by a URL: sqlite:///file.db, postgresql://host/database, or "
                "env:NAME where a variable holds the URL",
            ),
        )
    files = None if remote or uploaded else choose(str(where), chosen.s3_endpoint_url)
    if files is None:
        if _is_of_documents(spec.format):
            raise SourceError(
                "unsupported_format",
                f"{seen(named)} is one file, and with the format {spec.format} each file of a "
                "folder is one document; write the folder with a / at its end, or a pattern. "
                "Remote doors take single files only",
            )
        blob = _blob_of_uri(str(where), chosen, chosen.readable if remote else None)
        if uploaded:
            blob.uri = named
        return _of_blob(blob, spec, chosen, timeout_s, remote=remote or uploaded, formats=formats)
    form = files.form(spec.format)
    if form != ROWS:
        return _of_whole_files(files, form, spec, chosen, timeout_s)
    if not files.pattern:
        files = files.only(has_rows)
    blobs = row_files(files)
    opened = [_of_blob(blob, spec, chosen, timeout_s) for blob in blobs]
    return several.SeveralFiles(str(where), opened, files.skipped.pin())


def open_new_files(
    where: str,
    spec: JobSpec,
    settings: ProducerSettings,
    taken: Taken,
    *,
    among: Sequence[str] | None = None,
    timeout_s: float | None = None,
) -> tuple[RowSource | None, int]:
    """Return what no earlier job has of a folder, a prefix or a pattern.

    With it comes how many files may still be written. ``among``: only these of their files.

    The source is None where nothing is new. Raises SourceError and SpecError as ``open_source``.
    """
    chosen = choose(where, settings.s3_endpoint_url)
    if chosen is None:
        raise SourceError(
            "unsupported_source", f"{seen(where)} is no folder; end it with a / or write a pattern"
        )
    is_rows = not _is_of_documents(spec.format)
    found = new_files(chosen, taken, among=among, rows=is_rows)
    if not found.blobs:
        return None, found.unsettled
    if not is_rows:
        some = Chosen(ListedFiles(chosen.listing, found.entries), chosen.pattern)
        return _of_whole_files(some, str(spec.format), spec, settings, timeout_s), found.unsettled
    files = [_of_blob(blob, spec, settings, timeout_s) for blob in found.blobs]
    return several.SeveralFiles(where, files), found.unsettled


def unchanged(
    pin: Mapping[str, Any],
    where: str | Path,
    settings: ProducerSettings | None = None,
    *,
    ended: bool = False,
) -> bool:
    """Return whether ``where`` is plainly still what was pinned; reads no content.

    Place, size and time (or ETag) have to be the same.

    A table changes while its job runs, which goes on with its own rows. Once it has ``ended`` the
    rows are looked at again.
    """
    chosen = settings or _DEFAULTS
    if pin["kind"] == TABLE or is_database(str(where)):
        return not ended and is_database(str(where)) and whole(str(where)) == pin.get("uri")
    files = choose(str(where), chosen.s3_endpoint_url)
    if _format_of_files(pin) is not None:
        if files is not None and SKIPPED in pin:
            files = files.only(is_text)
        return files is not None and whole_files.unchanged(pin, files)
    if pin["kind"] == several.KIND:
        pins = pin[FILES]
        if files is not None and not files.pattern:
            files = files.only(has_rows)
        return (
            files is not None
            and files.form(None) == ROWS
            and [file.uri for file in row_files(files)] == [one["uri"] for one in pins]
            and all(_blob_of_pin(one, chosen).unchanged() for one in pins)
        )
    if files is not None or _blob_of_uri(str(where), chosen, None).uri != pin.get("uri"):
        return False
    return _blob_of_pin(pin, chosen).unchanged()


def refuse_unreadable(path: str) -> None:
    """Raise SourceError for a local path, or a database's name, that is plainly no source.

    Reads nothing of it."""
    if is_database(path):
        address_of(path)
        return
    chosen = choose(path)
    if chosen is not None:
        chosen.form(None)
        return
    refuse_ending(path)
    try:
        refuse_kind(path, os.stat(path).st_mode)
    except OSError as error:
        raise cannot_open(path, error) from error


def _of_database(
    where: str, spec: JobSpec, settings: ProducerSettings, remote: bool, timeout_s: float | None
) -> RowSource:
    # whatever `source_roots` says: a stranger must not choose where this process connects to
    if remote:
        raise SourceForbidden("a database", settings.source_roots)
    from penstock_producer.sources.databases.source import TableSource  # with SQLAlchemy

    return TableSource(where, spec, settings, timeout_s=timeout_s)


def _of_blob(
    blob: Blob,
    spec: JobSpec,
    settings: ProducerSettings,
    timeout_s: float | None,
    *,
    remote: bool = False,
    formats: Collection[str] | None = None,
) -> RowSource:
    """Return the source of a file that is submitted now."""
    found = format_of(blob, spec.format)
    if formats is not None and found.format.name not in formats:
        raise SourceError(
            "format_not_allowed",
            f"{blob.uri} is {found.format.name}, and the setting doors.formats allows "
            f"{', '.join(formats) or 'none'} here; write it as JSON Lines or CSV, or have the "
            f"operator add {found.format.name}",
        )
    if spec.sheet is not None and found.format.name != XLSX:
        raise SourceError(
            "unsupported_format",
            f"{blob.uri} is {found.format.name}, which has no sheets; leave the sheet out",
        )
    plain: Blob = blob if found.packed is None else Unpacked(blob, found.packed)
    timed: Blob = plain if timeout_s is None else TimedBlob(plain, timeout_s)
    places = MediaPlaces() if remote else places_of(blob.uri, settings, None)
    limits = settings.max_line_bytes, settings.max_body_bytes
    return _rows(timed, found.format, spec, limits, None, places)


def _of_pin(
    pin: Mapping[str, Any], spec: JobSpec, settings: ProducerSettings, *, remote: bool = False
) -> RowSource:
    remote = remote or pin.get(DOOR) in (REMOTE, UPLOADED)
    if pin["kind"] == several.KIND:
        files = [_of_pin(one, spec, settings, remote=remote) for one in pin[FILES]]
        return several.SeveralFiles(str(pin["uri"]), files)
    of_files = _format_of_files(pin)
    if of_files is not None:
        return _whole_files_of_pin(pin, of_files, spec, settings)
    blob: Blob = _blob_of_pin(pin, settings)
    found = FORMATS.get(str(pin.get(FORMAT, JSONL)))
    if found is None:
        raise SourceError(
            "unsupported_format",
            f"this release cannot read {pin[FORMAT]}: {blob.uri}; upgrade it",
        )
    packed = pin.get(PACKED)
    plain: Blob = blob if packed is None else Unpacked(blob, packed, pin)
    limits = int(pin["max_line_bytes"]), int(pin.get("max_body_bytes", DEFAULT_MAX_BODY_BYTES))
    places = (
        MediaPlaces() if remote else places_of(blob.uri, settings, int(pin.get(MEDIA_NEWEST, 0)))
    )
    return _rows(plain, found, spec, limits, int(pin["size"]), places)


def _is_of_documents(name: str | None) -> bool:
    """Return whether each file of a folder is one document in this format."""
    return name is not None and not FORMATS[name].of_rows


def _format_of_files(pin: Mapping[str, Any]) -> SourceFormat | None:
    """Return the format of a pin of files that are one document each; None for another pin."""
    kind = str(pin["kind"]).removeprefix(whole_files.SOME)
    return next((one for one in FORMATS.values() if one.each_file == kind), None)


def _of_whole_files(
    files: Chosen, form: str, spec: JobSpec, settings: ProducerSettings, timeout_s: float | None
) -> RowSource:
    limits = settings.max_line_bytes, settings.max_body_bytes
    options = whole_files.FileOptions(form, *limits, timeout_s=timeout_s)
    source: RowSource = FORMATS[form].load()(files, spec, options)
    return source


def _whole_files_of_pin(
    pin: Mapping[str, Any], form: SourceFormat, spec: JobSpec, settings: ProducerSettings
) -> RowSource:
    files = choose(str(pin["uri"]), settings.s3_endpoint_url)
    if files is None:  # a pattern, and now there is a file by that very name
        raise SourceChanged(
            f"{pin['uri']} stands for one file now; remove it, or submit it as a new job"
        )
    if FILES in pin:  # some files of a watched folder
        files = Chosen(ListedFiles.of_pins(files.listing, pin[FILES]), files.pattern)
    limits = int(pin["max_line_bytes"]), int(pin["max_body_bytes"])
    source: RowSource = form.load()(files, spec, whole_files.FileOptions(form.name, *limits, pin))
    return source


def _rows(
    blob: Blob,
    form: SourceFormat,
    spec: JobSpec,
    limits: tuple[int, int],
    size: int | None,
    places: MediaPlaces,
) -> RowSource:
    """Open a file of rows; ``size`` is None for one that is submitted now."""
    source: RowSource = form.load()(blob, spec, RowOptions(*limits, form.name, size, places))
    return source


def _blob_of_pin(
    pin: Mapping[str, Any], settings: ProducerSettings
) -> local.LocalFile | s3.S3Object | store.StoreObject:
    """Return the file of a pin.

    An uploaded file says its name in messages, which its tenant reads, and not where it lies.
    """
    blob = _placed_blob(pin, settings)
    blob.uri = shown_uri(pin)
    return blob


def _placed_blob(
    pin: Mapping[str, Any], settings: ProducerSettings
) -> local.LocalFile | s3.S3Object | store.StoreObject:
    roots = settings.readable if pin.get(DOOR) == REMOTE else None
    if pin["kind"] == local.KIND:
        return local.LocalFile(pin["uri"], pin, roots=roots)
    if roots is not None:
        roots.admit(pin["uri"])
    if pin["kind"] in store.SCHEMES:
        return store.StoreObject(pin["uri"], pin)
    if pin["kind"] == s3.KIND:
        return s3.S3Object(pin["uri"], pin, endpoint_url=settings.s3_endpoint_url)
    raise SourceError(
        "unsupported_source",
        f"this release cannot read sources of kind {pin['kind']!r}; upgrade it",
    )


def _blob_of_uri(uri: str, settings: ProducerSettings, roots: SourceRoots | None) -> Blob:
    if roots is not None:
        roots.admit(uri)
    refuse_ending(uri)
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return local.LocalFile(uri, roots=roots)
    if scheme == "s3":
        return s3.S3Object(uri, endpoint_url=settings.s3_endpoint_url)
    if scheme in store.SCHEMES:
        return store.StoreObject(uri)
    if scheme == "file":
        return local.LocalFile(unquote(urlsplit(uri).path))
    raise SourceError(
        "unsupported_source",
        f"{seen(uri)}: sources are local files and objects of s3://, gs:// and az://; copy it to "
        "one",
    )

"""Images and sounds that rows name: what they are, and their place in a request.

Nothing is decoded here: names and claims of a document do not count.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from penstock_producer.errors import seen
from penstock_producer.job.endpoints import MAX_UPLOAD_BYTES, UPLOAD_BODY_BYTES, UPLOADS
from penstock_producer.job.spec import JobSpec
from penstock_producer.public_hosts import NotFetched, fetch
from penstock_producer.rows import MISSING_FIELD
from penstock_producer.sources.forms.media_places import SMALLER, MediaPlaces
from penstock_producer.sources.forms.strict_json import RowFault, columns_of, meant, too_large

__all__ = [
    "AUDIO",
    "IMAGE",
    "LOOKED_AT",
    "MAX_BYTES",
    "Kind",
    "MediaParts",
    "body_limit",
    "either_of",
    "is_media",
    "kind_of",
    "media_of",
    "media_type_of",
    "refusal_of",
]

IMAGE: Final = "image"
AUDIO: Final = "audio"
EITHER: Final = "image or audio"
RECORDING: Final = "recording"  # what is transcribed: sounds, and containers that chats do not take
LOOKED_AT: Final = 1024  # bytes, for the beginning of an SVG


class Kind(NamedTuple):
    modality: str  # `image`, `audio` or `recording`
    name: str  # as in `image/png`, and in the `format` of a sound

    @property
    def media_type(self) -> str:
        """A type such as `image/png`."""
        name = {"mp3": "mpeg", "m4a": "mp4"}.get(self.name, self.name)
        return f"{'image' if self.modality == IMAGE else 'audio'}/{name}"

    def fits(self, modality: str) -> bool:
        """Return whether a column of this modality may hold it."""
        if modality == EITHER:
            return self.modality in (IMAGE, AUDIO)
        return self.modality == modality or (modality == RECORDING and self.modality == AUDIO)


_STARTS: Final = (
    (b"\x89PNG\r\n\x1a\n", Kind(IMAGE, "png")),
    (b"\xff\xd8\xff", Kind(IMAGE, "jpeg")),
    (b"GIF87a", Kind(IMAGE, "gif")),
    (b"GIF89a", Kind(IMAGE, "gif")),
    (b"ID3", Kind(AUDIO, "mp3")),
    (b"fLaC", Kind(AUDIO, "flac")),
    (b"OggS", Kind(AUDIO, "ogg")),
    (b"\x1aE\xdf\xa3", Kind(RECORDING, "webm")),
)
_IN_RIFF: Final = {b"WEBP": Kind(IMAGE, "webp"), b"WAVE": Kind(AUDIO, "wav")}
_WORDS: Final = {
    IMAGE: "images",
    AUDIO: "sounds",
    RECORDING: "recordings",
    EITHER: "images and sounds",
}
_READABLE: Final = {
    IMAGE: "PNG, JPEG, GIF or WebP",
    AUDIO: "WAV, MP3, FLAC or Ogg",
    RECORDING: "WAV, MP3, M4A, MP4, FLAC, Ogg or WebM",
    EITHER: "PNG, JPEG, GIF, WebP, WAV, MP3, FLAC or Ogg",
}


def kind_of(data: bytes) -> Kind | None:
    """Return the kind of some bytes; None for what models do not take."""
    for start, kind in _STARTS:
        if data.startswith(start):
            return kind
    if data[:4] == b"RIFF":
        return _IN_RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return Kind(RECORDING, "m4a" if data[8:11] == b"M4A" else "mp4")
    # a frame of MPEG layer III
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2 and data[1] & 0x18 != 0x08:
        return Kind(AUDIO, "mp3")
    return None


def is_media(start: bytes, *, whole: bool) -> bool:
    """Return whether a file that begins so is an image or a sound; ``whole`` tells nothing more."""
    return kind_of(start) is not None


def media_type_of(data: bytes) -> str | None:
    """Return a type such as `image/png`; None for what models do not take."""
    kind = kind_of(data)
    return None if kind is None else kind.media_type


def refusal_of(data: bytes, modality: str) -> tuple[str, str] | None:
    """Return what is wrong with these bytes as an image or a sound, and the fix.

    None where they may be one.
    """
    kind = kind_of(data)
    if kind is not None and kind.fits(modality):
        return None
    wanted = _READABLE[modality]
    if kind is not None:
        return (
            f"It is {kind.name} ({kind.modality}), and the column holds {_WORDS[modality]}.",
            f"give {wanted}",
        )
    if b"<svg" in data[:LOOKED_AT].lower():
        return "It is SVG, a program that models do not take.", "convert it to PNG"
    what = "empty" if not data else f"none of them by its first bytes ({data[:8].hex(' ')})"
    return (
        f"The column holds {_WORDS[modality]}, which are {wanted}, and this is {what}.",
        f"convert it to {wanted}",
    )


MAX_BYTES: Final = 10 * 1024 * 1024  # of one file; providers take 5 to 20 MB
MAX_ITEMS: Final = 20  # of one row
MAX_URL_CHARS: Final = 8_192
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}):")


class MediaParts:
    """Puts the images and sounds that a row names behind its text."""

    def __init__(
        self,
        fields: Sequence[tuple[str, str]],
        places: MediaPlaces,
        max_body_bytes: int,
        most_bytes: int = MAX_BYTES,
    ) -> None:
        """``fields``: columns, each with what it holds; ``most_bytes``: of one file."""
        self._fields = fields
        self._places = places
        self._max_body_bytes = max_body_bytes
        self._most_bytes = most_bytes
        self._are_sent = most_bytes == MAX_UPLOAD_BYTES  # as files, which have no address

    def content(self, text: str, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the text with the record's images and sounds as parts. Raises RowFault."""
        parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
        left = self._max_body_bytes - len(text)
        for name, modality in self._fields:
            for where in _named(record, name):
                if len(parts) > MAX_ITEMS:
                    raise _invalid(
                        name,
                        where,
                        f"The row has more than {MAX_ITEMS} images and sounds.",
                        "name fewer",
                    )
                parts.append(self._part(where, modality, name, left))
                left -= _size(parts[-1])
            if self._are_sent and (len(parts) < 2 or (modality == RECORDING and len(parts) > 2)):
                wanted = "one file" if modality == RECORDING else "a file"
                given = f"{len(parts) - 1} files"
                raise _invalid(name, given, f"The request sends {wanted}.", f"name {wanted}")
        return parts

    def texts(self, record: Mapping[str, Any], used: Collection[str]) -> Mapping[str, Any]:
        """Return the row without the content of images and sounds, which is no text for a prompt.

        Raises RowFault.
        """
        content = [name for name, _ in self._fields if _holds_bytes(record.get(name))]
        for name in content:
            if name in used:
                raise RowFault(
                    "invalid_type",
                    f"The prompt uses the column {name!r}, and this row holds bytes there, no "
                    "text.",
                    fix="leave it out of the prompt: images and sounds go behind it",
                    field=name,
                )
        return (
            {**record, **{name: _without_bytes(record[name]) for name in content}}
            if content
            else record
        )

    def _part(self, where: str | bytes, modality: str, field: str, left: int) -> dict[str, Any]:
        if isinstance(where, bytes):
            return _inlined(_bounded(where, self._most(left, field), field), where, modality, field)
        found = _SCHEME.match(where)
        scheme = "" if found is None else found[1].lower()
        if scheme == "https" and self._are_sent:
            return _inlined(_fetched(where, self._most(left, field), field), where, modality, field)
        if scheme in ("https", "http"):
            return _passed_on(where, scheme, AUDIO if self._are_sent else modality, field)
        if scheme and scheme not in ("data", "s3"):
            fix = "give an https:// address, a path, or s3://bucket/key"
            raise _invalid(field, where, f"{scheme}: is not read.", fix)
        most = self._most(left, field)
        data = (
            _decoded(where, most, field)
            if scheme == "data"
            else self._places.read(where, most, field)
        )
        return _inlined(data, where, modality, field)

    def _most(self, left: int, field: str) -> int:
        """Return how many bytes may still go into the request.

        Base64 has four characters for three of them.
        """
        most = min(self._most_bytes, left * 3 // 4)
        if most <= 0:
            raise too_large(f"more than {self._max_body_bytes} bytes", self._max_body_bytes, field)
        return most


def body_limit(spec: JobSpec, max_body_bytes: int) -> int:
    """Return how large a request may be: with room for a file where it is a form with one."""
    return max(max_body_bytes, UPLOAD_BODY_BYTES) if spec.endpoint in UPLOADS else max_body_bytes


def media_of(spec: JobSpec, places: MediaPlaces | None, max_body_bytes: int) -> MediaParts | None:
    """Return what reads the images and sounds of a job's rows; None for a job without.

    Without ``places`` rows may name addresses only.
    """
    if not spec.image_fields and not spec.audio_fields:
        return None
    is_upload = spec.endpoint in UPLOADS
    fields = (
        *((name, IMAGE) for name in spec.image_fields),
        *((name, RECORDING if is_upload else AUDIO) for name in spec.audio_fields),
    )
    most_bytes = MAX_UPLOAD_BYTES if is_upload else MAX_BYTES
    limit = body_limit(spec, max_body_bytes)
    return MediaParts(fields, places or MediaPlaces(), limit, most_bytes)


def either_of(field: str, max_body_bytes: int) -> MediaParts:
    """Return the reader of a column with images or sounds, whichever their first bytes say."""
    return MediaParts([(field, EITHER)], MediaPlaces(), max_body_bytes)


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_bytes, value))
    return isinstance(value.get("bytes") if isinstance(value, dict) else value, bytes)


def _without_bytes(value: Any) -> Any:
    return (
        {name: part for name, part in value.items() if name != "bytes"}
        if isinstance(value, dict)
        else None
    )


def _inlined(data: bytes, where: str | bytes, modality: str, field: str) -> dict[str, Any]:
    refusal = refusal_of(data, modality)
    kind = kind_of(data)
    if refusal is not None or kind is None:
        message, fix = refusal or ("", "")
        raise _invalid(field, where, message, fix)
    text = base64.b64encode(data).decode()
    if kind.modality == AUDIO and modality != RECORDING:
        return {"type": "input_audio", "input_audio": {"data": text, "format": kind.name}}
    # of a recording it is a file that is sent, of an image that or a part of a chat message
    url = f"data:{kind.media_type};base64,{text}"
    return {"type": "image_url", "image_url": {"url": url}}


def _bounded(data: bytes, most: int, field: str) -> bytes:
    if len(data) > most:
        raise RowFault(
            "media_too_large",
            f"It has {len(data)} bytes, and {most} may still go into this request.",
            fix=SMALLER,
            field=field,
            value=f"{len(data)} bytes",
        )
    return data


def _named(record: Mapping[str, Any], name: str) -> Iterator[str | bytes]:
    """Yield what a column holds: a path, an address or content, or a list of them.

    An empty text names nothing.
    """
    value = record.get(name)
    if value is None:
        what = "is null in" if name in record else "is missing from"
        raise RowFault(
            MISSING_FIELD,
            f"The column {name!r} {what} this row.",
            fix=(
                f"{meant(name, record)}fill it; an empty text or list means none; columns here: "
                f"{columns_of(record)}"
            ),
            field=name,
        )
    for one in value if isinstance(value, list) else [value]:
        inside = (one.get("bytes") or one.get("path")) if isinstance(one, dict) else one
        if not isinstance(inside, str | bytes):
            fix = (
                "write a path or an address, or a list of them; columns of Parquet and Arrow may "
                "hold the bytes"
            )
            raise _invalid(name, one, "It is neither text nor bytes.", fix)
        if inside or isinstance(inside, bytes):
            yield inside


def _passed_on(url: str, scheme: str, modality: str, field: str) -> dict[str, Any]:
    if modality == AUDIO:
        fix = "give a path: it goes into the request"
        raise _invalid(
            field, url, "A request holds the sounds themselves, not their addresses.", fix
        )
    try:
        parts = urlsplit(url)
        usable = (
            bool(parts.hostname) and parts.username is None and url.isprintable() and " " not in url
        )
    except ValueError:  # brackets that are no address
        usable = False
    if scheme != "https" or not usable or len(url) > MAX_URL_CHARS:
        fix = f"write https://host/path, of at most {MAX_URL_CHARS} characters, without a password"
        raise _invalid(field, url, "Providers cannot fetch this address.", fix)
    return {"type": "image_url", "image_url": {"url": url}}


def _fetched(url: str, most: int, field: str) -> bytes:
    try:
        return fetch(url, most)
    except NotFetched as error:
        fix = "check the address; redirects, other ports and networks of your own are not followed"
        raise RowFault(
            "media_unavailable",
            f"The file cannot be fetched: {error}.",
            fix=fix,
            field=field,
            value=seen(url),
        ) from None


def _decoded(url: str, most: int, field: str) -> bytes:
    head, comma, text = url.partition(",")
    if not comma or "base64" not in head.lower().split(";"):
        raise _invalid(field, url, "It holds no base64.", "write data:image/png;base64,…")
    if len(text) // 4 * 3 > most + 2:
        raise too_large(f"an image or sound of {len(text)} characters", most, field)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(field, url, "It holds no base64.", "write it without line breaks") from None


def _size(part: Mapping[str, Any]) -> int:
    inside = part[part["type"]]
    return len(inside.get("data") or inside.get("url") or "")


def _invalid(field: str, value: Any, message: str, fix: str) -> RowFault:
    shown = f"{len(value)} bytes" if isinstance(value, bytes) else seen(value)
    return RowFault("media_invalid", message, fix=fix, field=field, value=shown)

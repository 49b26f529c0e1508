"""What images and sounds are, by their first bytes.

Nothing is decoded here: names and claims of a document do not count."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "AUDIO",
    "EITHER",
    "IMAGE",
    "LOOKED_AT",
    "Kind",
    "kind_of",
    "media_type_of",
    "refusal_of",
]

IMAGE: Final = "image"
AUDIO: Final = "audio"
EITHER: Final = "image or audio"
LOOKED_AT: Final = 1024  # bytes, for the beginning of an SVG


class Kind(NamedTuple):
    modality: str  # `image` or `audio`
    name: str  # as in `image/png`, and in the `format` of a sound


_STARTS: Final = (
    (b"\x89PNG\r\n\x1a\n", Kind(IMAGE, "png")),
    (b"\xff\xd8\xff", Kind(IMAGE, "jpeg")),
    (b"GIF87a", Kind(IMAGE, "gif")),
    (b"GIF89a", Kind(IMAGE, "gif")),
    (b"ID3", Kind(AUDIO, "mp3")),
    (b"fLaC", Kind(AUDIO, "flac")),
    (b"OggS", Kind(AUDIO, "ogg")),
)
_IN_RIFF: Final = {b"WEBP": Kind(IMAGE, "webp"), b"WAVE": Kind(AUDIO, "wav")}
_WORDS: Final = {IMAGE: "images", AUDIO: "sounds", EITHER: "images and sounds"}
_READABLE: Final = {
    IMAGE: "PNG, JPEG, GIF or WebP",
    AUDIO: "WAV, MP3, FLAC or Ogg",
    EITHER: "PNG, JPEG, GIF, WebP, WAV, MP3, FLAC or Ogg",
}


def kind_of(data: bytes) -> Kind | None:
    """None for what models do not take."""
    for start, kind in _STARTS:
        if data.startswith(start):
            return kind
    if data[:4] == b"RIFF":
        return _IN_RIFF.get(data[8:12])
    if (
        len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2 and data[1] & 0x18 != 0x08
    ):  # a frame of MPEG layer III
        return Kind(AUDIO, "mp3")
    return None


def media_type_of(data: bytes) -> str | None:
    """As in `image/png`; None for what models do not take."""
    kind = kind_of(data)
    return (
        None if kind is None else f"{kind.modality}/{'mpeg' if kind.name == 'mp3' else kind.name}"
    )


def refusal_of(data: bytes, modality: str) -> tuple[str, str] | None:
    """What is wrong with these bytes as an image or a sound, and the fix; None where they may be
    one."""
    kind = kind_of(data)
    if kind is not None and modality in (kind.modality, EITHER):
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

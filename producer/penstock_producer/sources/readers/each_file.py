"""A folder, a prefix or a pattern of texts, or of images and sounds behind the job's prompt.

Of a text a prompt may use `{text}`, `{id}`, `{name}` and `{size}`. A row of an image or a sound has
`file` (the content), `id`, `name`, `bytes` (how many) and `media_type`. `--image-field file` or
`--audio-field file` says that all of them are images, or sounds; without either each is what its
first bytes say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import seen
from penstock_producer.job.endpoints import MAX_UPLOAD_BYTES, UPLOADS
from penstock_producer.job.request_body import is_anthropic
from penstock_producer.job.spec import JobSpec
from penstock_producer.source_formats import TEXT, UTF_8
from penstock_producer.sources.blobs.blob import BOM
from penstock_producer.sources.blobs.detect import is_text
from penstock_producer.sources.forms.media import (
    MAX_BYTES,
    MediaParts,
    either_of,
    media_of,
    media_type_of,
)
from penstock_producer.sources.forms.row_forms import form_of
from penstock_producer.sources.forms.strict_json import RowFault, check_text
from penstock_producer.sources.listings.chosen import Chosen
from penstock_producer.sources.listings.listing import Entry
from penstock_producer.sources.readers.whole_files import FileOptions, WholeFiles, check_name

_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")


def text_of(name: str, data: bytes, encoding: str) -> str:
    """Return the text of one file. Raises RowFault for a file that holds none."""
    check_name(name)
    plain = data.removeprefix(BOM)
    if not plain or plain.isspace():
        raise RowFault("empty_file", "The file holds no text.", fix="remove it, or fill it")
    if plain.startswith(_WIDE):
        raise _no_text("it looks like UTF-16", plain, 0, "convert it: iconv -f UTF-16 -t UTF-8")
    try:
        text = plain.decode(encoding)
    except UnicodeDecodeError as error:
        why = f"its byte {error.start + len(data) - len(plain)} is 0x{plain[error.start]:02x}"
        fix = Text(
            "name the encoding of the files (",
            SetOption("encoding", "cp1252"),
            "); images and sounds are read from a folder of their own",
        )
        raise _no_text(why, plain, error.start, fix) from None
    check_text(text, "text")
    return text


def _no_text(why: str, data: bytes, at: int, fix: str) -> RowFault:
    return RowFault(
        "invalid_encoding",
        f"The file is not text in the encoding that is expected: {why}.",
        fix=fix,
        field="text",
        value=seen(data[max(0, at - 8) : at + 8]),
    )


class TextFiles(WholeFiles):
    """Each file is the text of one document."""

    has = ("text", "id", "name", "size")
    bound = "the setting max_line_bytes allows"
    shrink = "split it, or raise max_line_bytes where documents really are larger"

    def __init__(self, chosen: Chosen, spec: JobSpec, options: FileOptions) -> None:
        most = options.max_body_bytes
        form = form_of(spec, most, media_of(spec, None, most))
        if spec.format != TEXT and not chosen.pattern:
            chosen = chosen.only(is_text)
        super().__init__(chosen, spec, form, options)
        self._encoding = spec.encoding or UTF_8

    def _row(self, entry: Entry, data: bytes) -> dict[str, Any]:
        return {"text": text_of(entry.name, data, self._encoding), "size": entry.size}


FILE: Final = "file"  # the column of the content


class MediaFiles(WholeFiles):
    """Each file is the image or the sound of one document.

    What is neither is a bad row by its name: cameras and people leave other files beside them.
    """

    has = (FILE, "id", "name", "bytes", "media_type")
    bound = "an image or a sound may have"
    shrink = "make it smaller, or give rows with https:// addresses of images"

    def __init__(self, chosen: Chosen, spec: JobSpec, options: FileOptions) -> None:
        max_body_bytes = options.max_body_bytes
        media: MediaParts | None
        if spec.image_fields or spec.audio_fields:
            asked, media = spec, media_of(spec, None, max_body_bytes)
        else:
            # Anthropic's Messages take no sounds, so that there only images can be meant.
            asked = spec.model_copy(update={"image_fields": [FILE]})
            media = (
                media_of(asked, None, max_body_bytes)
                if is_anthropic(spec.endpoint)
                else either_of(FILE, max_body_bytes)
            )
        if options.pin is None:  # the limit of rows is for texts
            most = MAX_UPLOAD_BYTES if spec.endpoint in UPLOADS else MAX_BYTES
            options = replace(options, max_file_bytes=most)
        super().__init__(chosen, asked, form_of(asked, max_body_bytes, media), options)

    def _row(self, entry: Entry, data: bytes) -> dict[str, Any]:
        check_name(entry.name)
        return {FILE: data, "bytes": entry.size, "media_type": media_type_of(data) or ""}

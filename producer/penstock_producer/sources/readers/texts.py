"""A folder, a prefix or a pattern of texts.

A prompt may use `{text}`, `{id}`, `{name}` and `{size}` of each.
"""

from __future__ import annotations

from typing import Any, Final

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.source_formats import TEXT, UTF_8
from penstock_producer.sources.blobs.blob import BOM
from penstock_producer.sources.blobs.detect import is_text
from penstock_producer.sources.forms.media import media_of
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

    def __init__(self, chosen: Chosen, spec: JobSpec, options: FileOptions) -> None:
        most = options.max_body_bytes
        form = form_of(spec, most, media_of(spec, None, most))
        if spec.format != TEXT and not chosen.pattern:
            chosen = chosen.only(is_text)
        super().__init__(chosen, spec, form, options)
        self._encoding = spec.encoding or UTF_8

    def _row(self, entry: Entry, data: bytes) -> dict[str, Any]:
        return {"text": text_of(entry.name, data, self._encoding), "size": entry.size}

    def _too_large(self, entry: Entry) -> RowFault:
        return RowFault(
            "file_too_large",
            f"The file has {entry.size} bytes, and the setting max_line_bytes allows "
            f"{self._max_file_bytes}.",
            fix="split it, or raise max_line_bytes where documents really are larger",
        )

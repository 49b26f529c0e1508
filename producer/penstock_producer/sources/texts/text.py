"""The bytes of a file as one text. Raises RowFault for what is none."""

from __future__ import annotations

from typing import Final

from penstock_producer.errors import seen
from penstock_producer.sources.blobs.lines import BOM
from penstock_producer.sources.forms.strict_json import RowFault, check_text

_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")


def text_of(name: str, data: bytes, encoding: str) -> str:
    """The text of one file. Raises RowFault for a file that holds none."""
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
        fix = (
            "name the encoding of the files (--encoding cp1252); images and sounds are read from a "
            "folder of their own"
        )
        raise _no_text(why, plain, error.start, fix) from None
    check_text(text, "text")
    return text


def check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RowFault(
            "invalid_encoding",
            "The name of this file is not UTF-8.",
            fix="rename it (convmv -t utf8)",
            value=seen(name),
        ) from None


def _no_text(why: str, data: bytes, at: int, fix: str) -> RowFault:
    return RowFault(
        "invalid_encoding",
        f"The file is not text in the encoding that is expected: {why}.",
        fix=fix,
        field="text",
        value=seen(data[max(0, at - 8) : at + 8]),
    )

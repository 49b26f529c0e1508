"""Read forms with files (RFC 7578) as they come: bytes in, parts out.

Nothing is kept but what cannot be decided yet.

The parser does no input or output of its own. However the bytes are cut into chunks, the same parts
come out, and the same bodies are refused. Each of its limits is a name below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.utils import collapse_rfc2231_value
from typing import Final

__all__ = ["Data", "FormPart", "MalformedForm", "MultipartParser", "PartEnd", "boundary_of"]

PARTS_MAX: Final = 16  # an upload has four fields at most
HEADER_MAX: Final = 8 * 1024  # bytes of all headers of one part
PADDING_MAX: Final = 128  # blanks after a boundary
PREAMBLE_MAX: Final = 16 * 1024  # bytes before the first boundary; readers skip them
EPILOGUE_MAX: Final = 16 * 1024  # and after the last

# up to 70 characters, by RFC 2046
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")
_PLAIN: Final = frozenset({"", "7bit", "8bit", "binary"})  # encodings that change nothing


class MalformedForm(ValueError):
    """The body is not a form, or is beyond a limit."""


@dataclass(frozen=True, slots=True)
class FormPart:
    """A part begins. ``filename`` is None for a plain field."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class Data:
    """The next bytes of the part that has begun."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnd:
    """It has all its bytes."""


Event = FormPart | Data | PartEnd


def boundary_of(content_type: str) -> str | None:
    """Return what separates the parts; None where the type is another.

    Raises MalformedForm for a form without a usable boundary."""
    header = _header("content-type", content_type)
    if header.get_content_type() != "multipart/form-data":
        return None
    given = header.get_param("boundary")
    if not isinstance(given, str) or not _BOUNDARY.fullmatch(given):
        raise MalformedForm("the Content-Type multipart/form-data names no usable boundary")
    return given


class MultipartParser:
    """One body. ``feed`` each chunk and take what it completes; ``end`` after the last."""

    def __init__(self, boundary: str) -> None:
        self._delimiter = b"\r\n--" + boundary.encode("ascii")
        self._held = bytearray(b"\r\n")  # so that the first boundary is found as the others are
        self._step = self._preamble
        self._parts = 0
        self._dropped = 0  # bytes outside of parts
        self.ended = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield what the next bytes complete. Raises MalformedForm."""
        self._held += chunk
        while (events := self._step()) is not None:
            yield from events

    def end(self) -> None:
        """End the form. Raises MalformedForm where the last boundary has not come."""
        if not self.ended:
            raise MalformedForm("the body ends before the last boundary of its form")

    def _preamble(self) -> tuple[Event, ...] | None:
        found = self._held.find(self._delimiter)
        self._dropped += self._drop(found)
        if self._dropped > PREAMBLE_MAX:
            raise MalformedForm("the form does not begin with its boundary")
        if found < 0:
            return None
        self._step = self._after_delimiter
        return ()

    def _after_delimiter(self) -> tuple[Event, ...] | None:
        """Read what is behind a boundary: two dashes end the form, a line end begins a part."""
        if len(self._held) < 2:
            return None
        if self._held.startswith(b"--"):
            self.ended, self._dropped = True, 0
            self._step = self._epilogue
            return ()
        line_end = self._held.find(b"\r\n", 0, PADDING_MAX + 2)
        padding = bytes(self._held[: line_end if line_end >= 0 else PADDING_MAX])
        if padding.rstrip(b"\r" if line_end < 0 else b"").strip(b" \t"):
            raise MalformedForm("a boundary of the form is followed by other text")
        if line_end < 0:
            if len(self._held) >= PADDING_MAX + 2:
                raise MalformedForm("a boundary of the form has no line end")
            return None
        if self._parts == PARTS_MAX:
            raise MalformedForm(f"the form has more than {PARTS_MAX} parts")
        self._parts += 1
        # its line end stays: headers, also none at all, end with an empty line
        del self._held[:line_end]
        self._step = self._headers
        return ()

    def _headers(self) -> tuple[Event, ...] | None:
        end = self._held.find(b"\r\n\r\n", 0, HEADER_MAX + 4)
        if end < 0:
            if len(self._held) >= HEADER_MAX + 4:
                raise MalformedForm(
                    f"the headers of a part of the form have more than {HEADER_MAX} bytes"
                )
            return None
        part = _part_of(bytes(self._held[2:end]))
        # the empty line's end stays: a part without a byte is followed by its boundary at once
        del self._held[: end + 2]
        self._step = self._body_start
        return (part,)

    def _body_start(self) -> tuple[Event, ...] | None:
        if len(self._held) < len(self._delimiter):
            if self._delimiter.startswith(self._held):
                return None
        elif self._held.startswith(self._delimiter):
            del self._held[: len(self._delimiter)]
            self._step = self._after_delimiter
            return (PartEnd(),)
        del self._held[:2]
        self._step = self._body
        return ()

    def _body(self) -> tuple[Event, ...] | None:
        found = self._held.find(self._delimiter)
        data = bytes(self._held[: found if found >= 0 else self._safe()])
        self._drop(found)
        if found < 0:
            return (Data(data),) if data else None
        self._step = self._after_delimiter
        return (Data(data), PartEnd()) if data else (PartEnd(),)

    def _epilogue(self) -> None:
        self._dropped += len(self._held)
        self._held.clear()
        if self._dropped > EPILOGUE_MAX:
            raise MalformedForm("the form goes on after its last boundary")

    def _drop(self, found: int) -> int:
        """Remove what is before a boundary and the boundary; else what cannot be a part of one.

        How much came before it."""
        before = found if found >= 0 else self._safe()
        del self._held[: before + (len(self._delimiter) if found >= 0 else 0)]
        return before

    def _safe(self) -> int:
        """Return how many of the held bytes cannot begin a boundary whose end has not come."""
        return max(0, len(self._held) - len(self._delimiter) + 1)


def _part_of(block: bytes) -> FormPart:
    lines = [line for line in block.decode("utf-8", "replace").split("\r\n") if line]
    headers = Message()
    for line in lines:
        name, colon, value = line.partition(":")
        if (
            not colon
            or not name.isascii()
            or not name.strip()
            or any(ord(one) < 32 and one != "\t" for one in line)
        ):
            raise MalformedForm("a header of a part of the form is not `name: value`")
        headers[name.strip()] = value.strip()
    disposition = headers.get_all("content-disposition", [])
    if len(disposition) != 1 or headers.get_content_disposition() != "form-data":
        raise MalformedForm(
            "each part of the form needs one header `Content-Disposition: form-data; name=…`"
        )
    if str(headers.get("content-transfer-encoding", "")).strip().lower() not in _PLAIN:
        raise MalformedForm(
            "a part of the form has a Content-Transfer-Encoding, which forms of HTTP do not have"
        )
    name_given = headers.get_param("name", header="content-disposition")
    if name_given is None:
        raise MalformedForm("a part of the form has no name")
    return FormPart(collapse_rfc2231_value(name_given), headers.get_filename())


def _header(name: str, value: str) -> Message:
    message = Message()
    message[name] = value
    return message

"""A stream of bytes as numbered lines, in memory bounded by the longest line allowed.

Only b"\\n" ends a line: U+2028, U+2029 and NEL inside strings do not. A preceding b"\\r" and a
leading BOM are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

BOM = b"\xef\xbb\xbf"

# (number, 1-based; offset of the first byte after a BOM; data without the line end, None when the
# line is longer than allowed; length without b"\n"; offset of the next line; whether the file ends
# here without a newline). A plain tuple: a named one costs as much to make as everything else that
# is done to a short line.
Line = tuple[int, int, bytes | None, int, int, bool]


def split_lines(
    chunks: Iterable[bytes], *, offset: int, number: int, max_line_bytes: int
) -> Iterator[Line]:
    """Lines of a stream that starts at byte ``offset``, the first of them being line ``number``.

    Blank lines are yielded with empty data so that the caller can keep count.
    """
    carry = bytearray()
    start = offset  # of the line that is being gathered
    position = offset  # of the next chunk
    skipping = False  # the line being gathered is already too long: its bytes are dropped
    for chunk in chunks:
        begin = 0
        while (newline := chunk.find(b"\n", begin)) >= 0:
            end = position + newline
            piece = chunk[begin:newline]
            data = b"".join((carry, piece)) if carry else piece
            yield _line(
                number, start, None if skipping else data, end, end + 1, max_line_bytes, last=False
            )
            carry.clear()
            begin, start, skipping, number = newline + 1, end + 1, False, number + 1
        if begin < len(chunk) and not skipping:
            carry += chunk[begin:]
            skipping = len(carry) > max_line_bytes + len(BOM) + 1
            if skipping:
                carry.clear()
        position += len(chunk)
    if carry or skipping:
        yield _line(
            number,
            start,
            None if skipping else bytes(carry),
            position,
            position,
            max_line_bytes,
            last=True,
        )


def _line(
    number: int,
    offset: int,
    data: bytes | None,
    end: int,
    next_offset: int,
    max_line_bytes: int,
    *,
    last: bool,
) -> Line:
    if data is not None:
        if number == 1 and offset == 0 and data.startswith(BOM):
            data, offset = data[len(BOM) :], len(BOM)
        if data.endswith(b"\r"):
            data = data[:-1]
        if len(data) > max_line_bytes:
            data = None
    return number, offset, data, end - offset, next_offset, last

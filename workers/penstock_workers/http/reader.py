"""One answer at a time, read by llhttp: head, body, and whether its connection can be used
again."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from penstock_workers.http.body import Body
from penstock_workers.http.client import HttpAnswer, Limits
from penstock_workers.http.errors import ConnectionLost, HttpError

# Of one answer's head, counted as HTTP/2 does: names, values and 32 bytes for each header. Real
# ones have some 2 KiB.
MAX_HEAD_BYTES = 64 * 1024
HEADER_COST = 32
# Of bytes that bring no body: half a header, trailers, extensions of chunks.
MAX_IDLE_BYTES = MAX_HEAD_BYTES
KNOWN_NAMES = 1024  # of headers whose lower-case form is kept
SWITCHING = 101

_names: dict[bytes, str] = {}


class AnswerReader:
    """Belongs to one connection.

    ``begin`` comes before each answer, then ``feed`` until it is ``complete``."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = HttpResponseParser(self)
        # As aiohttp's client takes them, too: what old servers write, and nothing that moves where
        # an answer ends.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self.begin(reserves=False)

    def begin(self, *, reserves: bool) -> None:
        """Expect an answer.

        Without ``reserves`` its body may become as large as the limits allow at once."""
        self._reserves = reserves
        self._headers: dict[str, str] = {}
        self._head_left = MAX_HEAD_BYTES
        self._idle_bytes = 0
        self._status = 0
        self._body: Body | None = None
        self._error: HttpError | None = None
        self._needs_eof = False
        self.has_begun = False  # any byte of the answer is here
        self.complete = False
        self.keeps = False  # the connection is good for another request

    @property
    def wants(self) -> int:
        """Bytes to reserve before more is fed, see ``grant``; 0 where none are needed."""
        return 0 if self._body is None else self._body.wants

    def feed(self, data: bytes) -> None:
        """Raises HttpError.

        What comes behind a complete answer spoils the connection, not the answer."""
        self.has_begun = True
        self._idle_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise ConnectionLost(
                "the server switched to another protocol, which the request did not ask for"
            ) from None
        except HttpParserError as error:
            self.keeps = False
            if not self.complete:
                raise self._cause(str(error)) from None
        if self._idle_bytes > MAX_IDLE_BYTES and not self.complete:
            raise ConnectionLost(
                f"the answer has {MAX_IDLE_BYTES} bytes in a row that bring no body"
            )

    def _cause(self, text: str) -> HttpError:
        """Forgets it: an exception that its own traceback reaches waits for the cycle collector."""
        found, self._error = self._error, None
        return found or ConnectionLost(f"what the server sent is not HTTP: {text}")

    def grant(self) -> None:
        """Go on after the memory was reserved. Raises HttpError."""
        assert self._body is not None, "called only after a reservation was asked for"
        self._body.grant()

    def end(self) -> None:
        """The server closed the connection.

        Raises ConnectionLost unless that is how this answer ends."""
        if self.complete:
            return
        if not self._needs_eof:
            when = "in the middle of its answer" if self.has_begun else "before its answer began"
            raise ConnectionLost(f"the server closed the connection {when}")
        self.complete = True

    def answer(self) -> HttpAnswer:
        """Once, when it is complete and wants nothing.

        Raises ConnectionLost where a compressed body is cut short."""
        body, self._body = self._body, None  # an idle connection holds no memory
        return HttpAnswer(self._status, self._headers, b"" if body is None else body.whole())

    # -- called by the parser ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            raise ConnectionLost("the server sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_left -= len(name) + len(value) + HEADER_COST
        if self._head_left < 0:
            raise self._head_is_too_large()
        if self._status:
            return  # a trailer
        key = _names.get(name) or _lower(name)
        if key not in self._headers:
            self._headers[key] = value.decode("utf-8", "surrogateescape")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            if status == SWITCHING:
                raise self._fail(
                    "the server switched to another protocol, which the request did not ask for"
                )
            return
        headers = self._headers
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.strip().lower() != "chunked":
            raise self._fail(
                f"the answer has the transfer encoding {coding[:40]!r}, which was not offered"
            )
        self._needs_eof = (
            coding is None and "content-length" not in headers and status not in (204, 304)
        )
        self._status = status
        try:
            self._body = Body(self._limits, headers, reserves=self._reserves)
        except HttpError as error:
            self._error = error
            raise

    def on_body(self, part: bytes) -> None:
        assert self._body is not None, "the parser has seen the headers"
        self._idle_bytes = 0
        try:
            self._body.feed(part)
        except HttpError as error:
            self._error = error
            raise

    def on_message_complete(self) -> None:
        if self._status:
            self.complete = True
            self.keeps = self._parser.should_keep_alive()
        else:  # such as 100 Continue: the answer follows
            self._headers = {}
            self._head_left -= HEADER_COST
            if self._head_left < 0:
                raise self._head_is_too_large()

    def _head_is_too_large(self) -> HttpError:
        return self._fail(f"the answer's head has more than {MAX_HEAD_BYTES} bytes")

    def _fail(self, text: str) -> HttpError:
        self._error = ConnectionLost(text)
        return self._error


def _lower(name: bytes) -> str:
    lowered = name.decode("latin-1").lower()
    if len(_names) < KNOWN_NAMES:
        _names[name] = lowered
    return lowered

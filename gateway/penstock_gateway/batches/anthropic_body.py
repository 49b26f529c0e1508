"""The body of `POST /v1/messages/batches`, from the connection into a file.

Memory holds the one request that is not complete, and a piece of the file.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

import orjson

from penstock_gateway.backend import Backend
from penstock_gateway.bodies import SHOWN_DIGITS
from penstock_gateway.callers.admission import Incoming, Shares
from penstock_gateway.files.form import BATCH_LIVES_S
from penstock_gateway.files.store import FileStore
from penstock_gateway.refused import Refused
from penstock_ledger import DoorFile
from penstock_producer.job.endpoints import MESSAGES
from penstock_producer.json_bounds import MAX_VALUES, huge_integer, overfull

__all__ = ["PURPOSE", "RequestReader", "taken_in"]

_BLANKS: Final = b" \t\r\n"
_QUOTE: Final = ord('"')
# A whole text, a bracket, or the quote of a text whose end has not arrived. Possessive: else each
# escape of a text would be kept as a place to go back to, in memory.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
_IN_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SOME_BLANKS: Final = re.compile(rb"[ \t\r\n]*+")
_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_HEAD: Final = re.compile(rb'\s*\{\s*"requests"\s*:\s*\[\s*')
_HEAD_MAX: Final = 4096  # bytes before the first request


class RequestReader:
    """``feed`` it the body; what it returns are lines of a job's source.

    Raises Refused for a body that is no batch."""

    def __init__(self, max_requests: int, max_request_bytes: int) -> None:
        self.requests = 0
        self._most = max_requests
        self._most_bytes = max_request_bytes
        self._held = bytearray()
        self._ids = set[str]()  # of at most 64 characters each
        self._begun = self._ended = self._behind_one = False
        self._depth = self._scanned = self._opened = 0  # of the request that is not complete
        self._in_text = False  # whether what was scanned ends inside of a text

    def feed(self, data: bytes) -> list[bytes]:
        self._held += data
        if not self._begun and not self._begin():
            return []
        lines = [self._line(one) for one in self._complete()]
        if len(self._held) > self._most_bytes:
            told = (
                f"requests.{self.requests}: a request has at most {self._most_bytes} bytes "
                "(setting max_body_bytes)"
            )
            raise Refused(413, told, code="request_too_large")
        return lines

    def finish(self) -> int:
        """Return how many requests there were."""
        if not self._ended or self._held.strip(_BLANKS) != b"}":
            raise _invalid(
                'expected one object, {"requests": [...]}, and the body ends differently'
            )
        if self.requests == 0:
            raise _invalid("requests: List should have at least 1 item")
        return self.requests

    def _begin(self) -> bool:
        found = _HEAD.match(self._held)
        if found is None:
            if len(self._held) > _HEAD_MAX:
                raise _invalid('the body begins differently than {"requests": [')
            return False
        del self._held[: found.end()]
        self._begun = True
        return True

    def _complete(self) -> Iterator[bytes]:
        """Yield the requests that are there whole; what is behind them is held."""
        held, start = self._held, 0
        while not self._ended:
            if self._depth == 0:
                start = _behind_blanks(held, start)
                if start == len(held):
                    break
                mark = bytes(held[start : start + 1])
                if mark == b"]" and (self._behind_one or self.requests == 0):
                    self._ended, start = True, start + 1
                    break
                if mark != (b"," if self._behind_one else b"{"):
                    raise _invalid(
                        f"requests.{self.requests}: expected "
                        f"{'a comma' if self._behind_one else 'an object'}"
                    )
                if self._behind_one:
                    self._behind_one, start = False, start + 1
                    continue
                self._scanned, self._opened = start, 0
            end = self._end_of_request()
            if end is None:
                break
            yield bytes(held[start:end])
            self._behind_one, start = True, end
        del held[:start]
        self._scanned -= start

    def _end_of_request(self) -> int | None:
        """Return where the request ends; None where its end has not arrived.

        No byte is looked at again when more of them come.
        """
        if self._in_text and not self._behind_text():
            return None
        for token in _TOKEN.finditer(self._held, self._scanned):
            self._scanned = token.end()
            first = self._held[token.start()]
            if first == _QUOTE:
                if token.end() - token.start() == 1:
                    self._in_text = True
                    break
                continue
            self._depth += 1 if first in b"{[" else -1
            if self._depth == 0:
                return self._scanned
            self._opened += first in b"{["
            if self._opened > MAX_VALUES:
                raise _invalid(
                    f"requests.{self.requests}: the request has more than {MAX_VALUES:,} values"
                )
        if self._in_text:
            self._behind_text()
        return None

    def _behind_text(self) -> bool:
        """Go on to the end of a text, as far as it is there; whether it is."""
        part = _IN_TEXT.match(self._held, self._scanned)
        assert part is not None, "the pattern matches nothing, too"
        self._scanned = part.end()
        self._in_text = self._held[self._scanned : self._scanned + 1] != b'"'
        self._scanned += not self._in_text
        return not self._in_text

    def _line(self, raw: bytes) -> bytes:
        at = f"requests.{self.requests}"
        too_much = overfull(raw)
        if too_much is not None:
            raise _invalid(f"{at}: the request has {too_much}")
        if (number := huge_integer(raw)) is not None:
            raise _invalid(f"{at}: 64 bits cannot hold the integer {number[:SHOWN_DIGITS]}")
        try:
            given: Any = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise _invalid(f"{at}: not valid JSON: {error}") from None
        extra = sorted(given.keys() - {"custom_id", "params"})
        if extra:
            raise _invalid(f"{at}.{extra[0][:80]}: Extra inputs are not permitted")
        custom_id, params = given.get("custom_id"), given.get("params")
        if not isinstance(custom_id, str) or _CUSTOM_ID.fullmatch(custom_id) is None:
            raise _invalid(f"{at}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        if not isinstance(params, dict):
            raise _invalid(f"{at}.params: Field required")
        if custom_id in self._ids:
            raise _invalid(f"{at}.custom_id: {custom_id!r} is used more than once")
        self._ids.add(custom_id)
        self.requests += 1
        if self.requests > self._most:
            raise _invalid(f"requests: List should have at most {self._most} items")
        line = {"custom_id": custom_id, "method": "POST", "url": MESSAGES, "body": params}
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _behind_blanks(held: bytearray, start: int) -> int:
    blanks = _SOME_BLANKS.match(held, start)
    return start if blanks is None else blanks.end()


def _invalid(message: str) -> Refused:
    return Refused(400, message, code="invalid_value")


PURPOSE: Final = "message_batch"  # of the file; no upload has it
PIECE: Final = 1024 * 1024  # bytes that are looked at together


async def taken_in(
    backend: Backend, body: AsyncIterator[bytes], tenant: str | None, name: str
) -> tuple[DoorFile, int]:
    """Return the file, and how many requests it has. Raises Refused; nothing stays then."""
    room = await backend.run(FileStore(backend.settings, backend.database).room_of, tenant)
    with backend.part(Shares).upload(tenant, room) as incoming:
        return await _written(backend, body, tenant, name, incoming)


async def _written(
    backend: Backend, body: AsyncIterator[bytes], tenant: str | None, name: str, incoming: Incoming
) -> tuple[DoorFile, int]:
    door = backend.settings.gateway.batches
    reader = RequestReader(door.messages_max_requests, backend.settings.max_body_bytes)
    store = FileStore(backend.settings, backend.database)
    writing = await backend.run(store.begin, tenant)
    size, held = 0, bytearray()

    def write(piece: bytes) -> None:
        for line in reader.feed(piece):
            writing.write(line)

    try:
        async for chunk in body:
            size += len(chunk)
            if size > door.messages_max_bytes:
                told = (
                    f"Request exceeds the maximum size of {door.messages_max_bytes / 1024**2:g} MB."
                )
                raise Refused(413, told, code="request_too_large")
            incoming.grow_to(size)
            held += chunk
            if len(held) >= PIECE:
                await backend.run(write, bytes(held))
                held.clear()
        await backend.run(write, bytes(held))
        requests = reader.finish()
        finish = partial(writing.finish, f"{name}.jsonl", PURPOSE, BATCH_LIVES_S, lines=requests)
        return await backend.run(finish), requests
    except BaseException:
        await backend.run(writing.discard)
        raise

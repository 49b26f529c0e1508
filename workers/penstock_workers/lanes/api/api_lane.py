"""The `api` lane: real-time calls to a provider over HTTP, bodies passed through untouched.

No SDK and no retry in here: every send is one `infer`, so the quota sees each of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock_producer.feed.queues import LISTED
from penstock_workers.errors import NoCredentials
from penstock_workers.http import (
    AnswerTooLarge,
    CertificateRefused,
    ClientName,
    ConnectionLost,
    HttpClient,
    Limits,
    NotConnected,
    TimedOut,
    UnusableRequest,
    make_client,
)
from penstock_workers.item.answer import Answer, AnswerMemory, NoAnswer, ReservedRoom, Tried, kept
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.images import ImageStore
from penstock_workers.lanes.api.outgoing import Outgoing
from penstock_workers.lanes.api.polls import ModelList
from penstock_workers.lanes.api.requests import put_behind, written
from penstock_workers.lanes.api.streamed import USUAL_PACE, Pace, Streamed
from penstock_workers.settings import ANSWER_MEMORY_BYTES, MAX_ANSWER_BYTES, ProviderSettings

# a server that does not even accept in this time is down, whatever the item's own deadline
CONNECT_TIMEOUT_S = 10.0
# up to here nothing is asked or counted: nearly every answer, 16 MiB in 256 slots
SMALL_ANSWER_BYTES = 64 * 1024
KEEPALIVE_S = 30.0
CERTIFICATE_FIX = (
    "this machine does not trust the server's certificate: give workers the file of its authority "
    "in SSL_CERT_FILE, or correct the address"
)


class ApiLane:
    """One HTTP client per worker process.

    How many connections it has is bounded by the runner's slots."""

    def __init__(
        self,
        providers: Mapping[str, ProviderSettings],
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        answer_memory_bytes: int = ANSWER_MEMORY_BYTES,
        http_client: ClientName = "lean",
        pace: Pace = USUAL_PACE,
    ) -> None:
        self._providers = providers
        self._max_answer_bytes = max_answer_bytes
        self._memory = AnswerMemory(answer_memory_bytes)
        self._http_client: ClientName = http_client
        self._pace = pace
        self.images = ImageStore(None, providers)
        self.models = ModelList(providers, http_client)  # started where heartbeats are sent
        self._client: HttpClient | None = None
        self._outgoing = Outgoing(providers)

    async def start(self) -> None:
        await self._outgoing.start()
        limits = Limits(self._max_answer_bytes, SMALL_ANSWER_BYTES, CONNECT_TIMEOUT_S, KEEPALIVE_S)
        self._client = make_client(self._http_client, limits)

    async def prepare(self, request: Request) -> Prepared:
        behind = put_behind(request, self._providers[request.provider].request_priority)
        return self.images.prepared(behind)

    def gauges(self) -> Mapping[str, float | str]:
        listed = self.models.to_text()
        return {} if listed is None else {LISTED: listed}

    async def infer(self, prepared: Prepared) -> Tried:
        request = prepared.request
        way = self._providers[request.provider].streams
        stream = Streamed.of(request, way, self._max_answer_bytes, self._pace)
        tried = await self._asked(request, stream)
        return await self.images.kept(request, tried if stream is None else stream.judged(tried))

    async def _asked(self, request: Request, stream: Streamed | None) -> Tried:
        started = time.monotonic()
        try:
            sent = await written(request, "no" if stream is None else stream.way)
            return await self._post(sent, started, stream)
        except CertificateRefused as error:
            words = f"{error}; {CERTIFICATE_FIX}"
            return NoAnswer("connect_failed", words, _since(started), sent=False)
        except NotConnected as error:
            return NoAnswer("connect_failed", str(error), _since(started), sent=False)
        except TimedOut:
            words = f"no complete answer within {request.timeout_s:g} s"
            return NoAnswer("timeout", words, _since(started))
        except NoCredentials as error:
            return NoAnswer("unauthorized", str(error), _since(started), sent=False)
        except UnusableRequest as error:
            return NoAnswer("bad_request", str(error), _since(started), sent=False)
        except AnswerTooLarge:
            words = f"too large: the setting max_answer_bytes allows {self._max_answer_bytes} bytes"
            return NoAnswer("answer_too_large", words, _since(started))
        except ConnectionLost as error:
            return NoAnswer("connection_lost", str(error), _since(started))

    def drain(self) -> None:
        """Do nothing: there is nothing to begin that takes long."""

    async def close(self) -> None:
        await self.models.close()
        if self._client is not None:
            await self._client.close()

    async def _post(self, request: Request, started: float, stream: Streamed | None) -> Tried:
        assert self._client is not None, "start() comes first"
        target = self._outgoing.target(request.provider, request.endpoint)
        headers = await self._outgoing.headers(request, target)
        memory = ReservedRoom(self._memory)
        try:
            answer = await self._client.post(
                target,
                request.body,
                headers=headers,
                timeout_s=request.timeout_s,
                reserve=memory.reserve,
                stream=stream,
            )
            body = answer.body if stream is None or not stream.has_begun else stream.whole()
        except BaseException:
            memory.release()
            raise
        if (room := memory.room) is not None:
            room.shrink(len(body))
        return Answer(
            answer.status, answer.headers, kept(answer.status, body), _since(started), room
        )


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)

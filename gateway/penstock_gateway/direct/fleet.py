"""Workers say of themselves which models there are, and so which lane takes a call.

So a call that no one would answer is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from redis import RedisError

from penstock_gateway.backend import Backend
from penstock_gateway.refused import Refused
from penstock_ledger import RedisLedger, WorkerSeen
from penstock_producer.dialects.translation import ways_to
from penstock_producer.feed.queues import ALIVE_S, Served, listed_models, serving_of
from penstock_producer.job.endpoints import RESPONSES
from penstock_producer.job.lanes import can_answer, has_own_model, packs

__all__ = ["Fleet", "Way"]

FRESH_S: Final = 1.0  # a look this old is used as it is,
# a worker that was seen so lately comes back: Redis has forgotten it, or it is started again
LATELY_S: Final = 60.0
STALE_S: Final = 10.0  # one this old while the next look is on its way, and no older one
_RETRY_AFTER: Final = {"retry-after": "5"}  # seconds: a worker that is started needs about as long


class Way(NamedTuple):
    """A way to ask a call: by a lane, on an endpoint that may be another than the caller's."""

    lane: str
    endpoint: str


class Fleet:
    """The workers that are there, looked at when a call comes and at most once a second.

    Belongs to the event loop."""

    def __init__(self, backend: Backend, hot: Callable[[], RedisLedger]) -> None:
        self._backend = backend
        self._hot = hot
        self._workers: Sequence[WorkerSeen] = ()
        # by name, when they lived last; as many as workers of a minute
        self._lately: dict[str, tuple[float, WorkerSeen]] = {}
        self._sent: dict[tuple[str, str], str | None] = {}  # of ``_sent_to``, by lane and endpoint
        self._looked_at = float("-inf")
        self._look: asyncio.Task[None] | None = None

    async def way_for(self, model: str, endpoint: str) -> Way:
        """Return the lane that serves the model, and the endpoint that it is asked on.

        Raises Refused: 404 for a model that is not served, 503 where no worker lives, or where
        Redis does not answer."""
        await self._looked()
        try:
            return self._chosen(self._workers, model, endpoint)
        except Refused as refused:
            if refused.status < 500 and self._was_there(model, endpoint):
                raise _unavailable(f"no worker is there for {endpoint}", "no_worker") from None
            raise

    async def hosted(self) -> list[Served]:
        """Return the models of living workers. Raises Refused (503) where Redis does not answer."""
        await self._looked()
        lanes = filter(has_own_model, self._backend.settings.gateway.direct.lanes)
        return [served for lane in lanes for served in serving_of(self._workers, lane).models()]

    async def listed(self, provider: str) -> list[str]:
        """Return the models that a provider lists, as living workers say.

        Raises Refused (503) where Redis does not answer.
        """
        await self._looked()
        return listed_models(self._workers, provider)

    async def _looked(self) -> None:
        """Look at the workers, unless the last look is fresh enough. Raises Refused (503)."""
        age_s = time.monotonic() - self._looked_at
        if age_s > FRESH_S and (self._look is None or self._look.done()):
            self._look = asyncio.create_task(self._look_now(), name="look at workers")
        if age_s > STALE_S and self._look is not None:
            await asyncio.shield(self._look)
        if time.monotonic() - self._looked_at > STALE_S:
            raise _unavailable("Redis does not answer", "service_unavailable")

    async def _look_now(self) -> None:
        try:
            self._workers = await self._backend.run(lambda: self._hot().workers())
            self._looked_at = now = time.monotonic()
            alive = (one for one in self._workers if one.seconds_ago < ALIVE_S)
            self._lately |= {one.name: (now, one) for one in alive}
            self._lately = {
                name: seen for name, seen in self._lately.items() if now - seen[0] < LATELY_S
            }
        except RedisError:  # the age of the last look says the rest
            pass

    def _was_there(self, model: str, endpoint: str) -> bool:
        """Return whether workers that lived a moment ago would have taken the call."""
        try:
            self._chosen([one for _, one in self._lately.values()], model, endpoint)
        except Refused:
            return False
        return True

    def _chosen(self, workers: Sequence[WorkerSeen], model: str, endpoint: str) -> Way:
        settings = self._backend.settings
        direct = settings.gateway.direct
        served, loading, unfit = list[str](), False, dict[str, str]()
        for lane in direct.lanes:
            # each call asks, and settings do not change
            if (lane, endpoint) not in self._sent:
                self._sent[lane, endpoint] = self._sent_to(lane, endpoint)
            sent = self._sent[lane, endpoint]
            if sent is None:
                why = settings.refused_endpoint(direct.provider, endpoint, lane) or ""
                unfit[lane] = why.rstrip(".")
                continue
            if not has_own_model(lane):
                if any(
                    one.info.get("lane") == lane and one.seconds_ago < ALIVE_S for one in workers
                ):
                    return Way(lane, sent)
                continue
            serving = serving_of(workers, lane)
            if serving.serves(model):
                return Way(lane, sent)
            loading = loading or serving.loads(model)
            served += [one.shown for one in serving.models()]
        if loading:
            raise _unavailable(f"a worker is loading the model {model[:80]!r}", "model_loading")
        if not served:
            raise self._no_worker(endpoint, unfit)
        raise Refused(
            404,
            f"The model {model[:80]!r} does not exist here; served are: "
            f"{', '.join(sorted(set(served))[:20])}",
            code="model_not_found",
            param="model",
        )

    def _sent_to(self, lane: str, endpoint: str) -> str | None:
        """Return where a lane sends requests to an endpoint; None where it cannot.

        OpenAI's Responses are sent as such where the provider is known to have them, else as chats.
        """
        settings = self._backend.settings
        provider = settings.gateway.direct.provider
        facts = settings.prices(provider)
        for sent in ways_to(endpoint):
            if sent == RESPONSES and (has_own_model(lane) or not facts.has_responses):
                continue
            refusal = settings.refused_endpoint(provider, sent, lane)
            if refusal is None and can_answer(lane, sent):
                return sent
        return None

    def _no_worker(self, endpoint: str, unfit: Mapping[str, str]) -> Refused:
        """Return why there is no worker for a call; ``unfit`` says why a lane answers none of them.

        Where all workers that live ask by batches, or a provider that has no such API, trying again
        does not help.
        """
        alive = {one.info.get("lane", "") for one in self._workers if one.seconds_ago < ALIVE_S}
        if alive and alive <= unfit.keys():
            why = unfit[min(alive)] or f"no lane here answers {endpoint}"
            return Refused(400, f"Nothing here answers {endpoint}: {why}.", code="unsupported")
        packing = sorted(filter(packs, alive))
        if not packing or alive - set(packing):
            return _unavailable(f"no worker is there for {endpoint}", "no_worker")
        return Refused(
            503,
            f"nothing here answers at once: all workers are of the lane {packing[0]}, which asks "
            "the provider by batches that may take a day. Send the request in a batch (POST "
            "/v1/batches); an operator adds workers that answer at once, of lane api or auto",
            code="no_worker",
            kind="server_error",
            headers=_RETRY_AFTER | {"x-should-retry": "false"},
        )


def _unavailable(why: str, code: str) -> Refused:
    return Refused(
        503,
        f"{why}; try again in some seconds",
        code=code,
        kind="server_error",
        headers=_RETRY_AFTER,
    )

"""The server beside a worker that has the model: it is waited for, followed, and found gone.

Nothing is known of that server but what it answers. While it is away nothing is sent to it, and
items wait until its model is loaded again. Hundreds of items ask as one whether it is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from penstock_workers.background import BackgroundTasks
from penstock_workers.errors import BadEngineSettings, EngineAway
from penstock_workers.http import ClientName, HttpAnswer, HttpClient, HttpError, Target, make_client
from penstock_workers.item.answer import Tried
from penstock_workers.item.lane import Prepared
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.settings import ProviderSettings, WorkerSettings

log = logging.getLogger(__name__)

Seen = TypeVar("Seen")

SERVER: Final = "server"  # a provider of the HTTP client: items of all providers go to it
ROOT: Final = "server root"  # the same server: its paths beside its /v1
ASK_TIMEOUT_S: Final = 5.0
ASK_AGAIN_S: Final = 1.0  # while it loads its model, which takes half a minute at least
# how often it is asked what it serves: it may be started with another model, or get adapters
MODELS_EACH_S: Final = 5.0


class ServerCalls:
    """The calls to one server: of items, and for its own pages."""

    def __init__(self, url: str, settings: WorkerSettings) -> None:
        self.url = url
        self._items = ApiLane(
            {
                SERVER: ProviderSettings(base_url=url),
                ROOT: ProviderSettings(base_url=url.removesuffix("/v1")),
            },
            settings.max_answer_bytes,
            settings.answer_memory_bytes,
            settings.http_client,
        )
        self._http_client: ClientName = settings.http_client
        self._pages: HttpClient | None = None

    async def start(self) -> None:
        await self._items.start()
        self._pages = make_client(self._http_client)

    async def close(self) -> None:
        await self._items.close()
        if self._pages is not None:
            await self._pages.close()

    async def infer(self, prepared: Prepared) -> Tried:
        return await self._items.infer(prepared)

    def at_root(self, path: str) -> str:
        """Return an address at the root of the server, while its API is under /v1."""
        return urlsplit(self.url)._replace(path=path).geturl()

    async def page(self, url: str) -> HttpAnswer | None:
        """Get a page of the server; None where there is no server."""
        assert self._pages is not None, "start() comes first"
        try:
            return await self._pages.get(Target.of(url), timeout_s=ASK_TIMEOUT_S)
        except HttpError:
            return None


class ServerModels(Protocol[Seen]):
    """The models that a server serves, as the lane understands it."""

    async def look(self) -> Seen | None:
        """Ask the server what it serves; None while it has no model.

        Raises BadEngineSettings for another kind of server."""
        ...

    def note(self, seen: Seen) -> None: ...

    @property
    def shown(self) -> str: ...


class Gate(Protocol):
    """Lets items go to the server while it is there."""

    def open(self) -> None: ...

    def close(self) -> None: ...


class ServerWait(Generic[Seen]):
    """The time that a worker has waited for the model of the server beside it."""

    def __init__(
        self, url: str, most_s: float, lane: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url, self._most_s, self._lane, self._clock = url, most_s, lane, clock
        self._since: float | None = None

    async def model(self, look: Callable[[], Awaitable[Seen | None]]) -> Seen:
        """Look again and again until there is a model, and return it.

        Raises EngineAway when that takes too long, and what ``look`` raises."""
        self._since = began = self._clock()
        log.warning("waiting for the model of %s, for %g s at most", self._url, self._most_s)
        while (found := await look()) is None:
            if self._clock() - began + ASK_AGAIN_S > self._most_s:
                raise EngineAway(self._url, self._most_s, self._lane)
            await asyncio.sleep(ASK_AGAIN_S)
        self._since = None
        log.warning("%s has its model after %.0f s", self._url, self._clock() - began)
        return found

    def gauges(self) -> Mapping[str, float | str]:
        """Say how long it has waited; from any thread."""
        since = self._since
        if since is None:
            return {}
        server = urlsplit(self._url).netloc.rpartition("@")[2]
        return {"loading": f"waiting for the model of {server}, for {self._clock() - since:.0f} s"}


class SharedLook(Generic[Seen]):
    """Used on one event loop. ``look`` is not called again while it runs."""

    def __init__(self, look: Callable[[], Awaitable[Seen]]) -> None:
        self._look = look
        self._one_at_a_time = asyncio.Lock()
        self._last: tuple[float, Seen] | None = None  # when it began, and what was seen

    async def take(self) -> Seen:
        """Return what is seen by a look that begins after this call.

        Raises what ``look`` raises."""
        asked_at = time.monotonic()
        async with self._one_at_a_time:
            if self._last is not None and self._last[0] >= asked_at:
                return self._last[1]
            began = time.monotonic()
            seen = await self._look()
            self._last = began, seen
            return seen


class ServerLife(Generic[Seen]):
    """The watch over a server's model. On one event loop.

    ``give_up`` ends the worker, for its orchestrator to replace."""

    def __init__(
        self,
        url: str,
        wait: ServerWait[Seen],
        models: ServerModels[Seen],
        give_up: Callable[[str], None],
        gate: Gate | None = None,
    ) -> None:
        self._url, self._wait, self._models = url, wait, models
        self._give_up, self._gate = give_up, gate
        self.up = asyncio.Event()
        self._deaths = 0  # times that the server went away
        self._ending = False
        self._tasks = BackgroundTasks()
        self._look = SharedLook(self._is_there)

    async def start(self) -> None:
        """Wait until the server has loaded the model, and follow which one it has.

        Raises EngineAway when that takes too long."""
        await self._await_model()
        self._tasks.start(self._follow(), "server models")

    def drain(self) -> None:
        self._ending = True

    async def close(self) -> None:
        self._ending = True
        await self._tasks.close()

    def gauges(self) -> Mapping[str, float | str]:
        return {"deaths": float(self._deaths), **self._wait.gauges()}

    async def look(self) -> bool:
        """Look now what the server serves, and return whether it is there.

        Raises nothing: items wait for it."""
        return await self._look.take()

    async def is_gone(self) -> bool:
        return not self.up.is_set() or not await self.look()

    def note_away(self, why: str) -> None:
        """Note that the server does not answer, and have items wait until it is back.

        Each item that was not answered calls this; only the first call does something."""
        if not self.up.is_set() or self._ending:
            return
        self.up.clear()
        self._deaths += 1
        if self._gate is not None:
            self._gate.close()
        log.error(
            "%s does not answer (%s); items wait here until its model is loaded again",
            self._url,
            why,
        )
        self._tasks.start(self._await_return(), "server return")

    async def _await_return(self) -> None:
        try:
            await self._await_model()
        except (EngineAway, BadEngineSettings) as error:
            self._give_up(str(error))

    async def _await_model(self) -> None:
        self._models.note(await self._wait.model(self._models.look))
        self.up.set()
        if self._gate is not None:
            self._gate.open()
        log.warning("%s serves %s", self._url, self._models.shown)

    async def _follow(self) -> None:
        """Look again and again what the server serves.

        Changes nothing while the server does not answer: its items notice that."""
        while True:
            await asyncio.sleep(MODELS_EACH_S)
            if self.up.is_set():
                await self.look()

    async def _is_there(self) -> bool:
        try:
            seen = await self._models.look()
        except BadEngineSettings as error:  # it answers, though not as it should
            log.warning("%s", error)
            return True
        if seen is not None:
            self._models.note(seen)
        return seen is not None

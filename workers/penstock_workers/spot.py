"""Spot notices by asking the cloud's metadata service.

Off unless `spot_notices` names the cloud.

What a cloud says of the end of this machine, and how its answers are read: believed only where
they make sense.

AWS: IMDSv2's `spot/instance-action`, which is not there until the notice of two minutes.

Azure: Scheduled Events with a `Preempt` event that names this virtual machine.

Nothing is acknowledged: that would make Azure begin at once, for every process of every machine
that the event names.

Google Cloud: `instance/preempted`, which is FALSE until the notice.

One request waits for the change.

Asks the cloud's metadata service for a spot notice until there is one, in a thread with a loop
of its own.

A lane may block the item loop while a model loads, and a notice counts then, too. Whatever the
service answers other than a notice that makes sense leaves the worker as it is: it is asked again,
less often, and SIGTERM works as ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

from penstock_workers.http import HttpAnswer, HttpError, Limits, Target
from penstock_workers.http.pool import LeanClient
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import WorkerSettings

TIMEOUT_S: Final = 3.0  # of one question; GKE's own metadata server takes up to 2 s
SHOWN_CHARS: Final = 80  # of what was answered, in the log
# The shortest notice of any cloud is 30 s, the longest of a spot machine 2 minutes; clocks differ
# by seconds at most.
MAX_AHEAD_S: Final = 900.0
MAX_AGO_S: Final = 300.0  # such a machine is still here, so the notice is of an earlier life of it


class Unusable(Exception):
    """The metadata service has answered, but not as its documentation says.

    The text is a sentence for a person."""


@dataclass(frozen=True, slots=True)
class Notice:
    cloud: str
    event: str  # the cloud's own word, of the few that are known
    ends_at: float  # Unix time


class SpotService(Protocol):
    """The metadata service of one cloud."""

    cloud: str
    interval_s: float  # between two questions

    async def look(self, client: LeanClient) -> Notice | None:
        """Ask once. None = no notice. Raises Unusable and HttpError."""
        ...


def believed(cloud: str, event: str, ends_at: datetime) -> Notice:
    """Return the notice if its time can be right.

    A wrong clock or a wrong service must not end a worker. Raises Unusable for a time that no
    notice has.
    """
    aware = ends_at if ends_at.tzinfo is not None else ends_at.replace(tzinfo=UTC)
    left = aware.timestamp() - time.time()
    if not -MAX_AGO_S <= left <= MAX_AHEAD_S:
        raise Unusable(
            f"its notice ({event}) names {aware.isoformat()}, {left:.0f} s from now, which no "
            "notice does"
        )
    return Notice(cloud, event, aware.timestamp())


def expect_ok(answer: HttpAnswer, asked: str) -> None:
    if answer.status != 200:
        raise Unusable(f"it answered {asked} with status {answer.status}")


def json_object(answer: HttpAnswer, asked: str) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise Unusable(f"it answered {asked} with what is not JSON: {shown(answer.body)}") from None
    if not isinstance(found, dict):
        raise Unusable(f"it answered {asked} with {shown(answer.body)}, which is not a JSON object")
    return found


def shown(what: object) -> str:
    """Say something as the log may show it: short, and on one line."""
    text = repr(what[: 2 * SHOWN_CHARS] if isinstance(what, (str, bytes)) else what)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105 - where a token is fetched
ACTION_PATH: Final = "/latest/meta-data/spot/instance-action"
TOKEN_HEADER: Final = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
# the longest there is; once it has ended the service answers 401, and a new one is fetched
TOKEN_TTL_S: Final = 21_600
MAX_TOKEN_CHARS: Final = 1024  # real ones have 56
ACTIONS: Final = frozenset({"terminate", "stop", "hibernate"})


class AwsService:
    """Implements ``SpotService``. Pods reach it where the node's hop limit is 2 or more."""

    cloud = "aws"
    interval_s = 5.0  # as AWS advises

    def __init__(self, url: str) -> None:
        self._token_target = Target.of(
            url + TOKEN_PATH, {f"{TOKEN_HEADER}-ttl-seconds": str(TOKEN_TTL_S)}
        )
        self._action_url = url + ACTION_PATH
        self._token: str | None = None

    async def look(self, client: LeanClient) -> Notice | None:
        answer = await self._ask(client)
        if answer.status == 401:
            self._token = None
            answer = await self._ask(client)
        if answer.status == 404:
            return None
        expect_ok(answer, ACTION_PATH)
        return _aws_notice(answer)

    async def _ask(self, client: LeanClient) -> HttpAnswer:
        if self._token is None:
            self._token = await self._new_token(client)
        return await client.get(
            Target.of(self._action_url, {TOKEN_HEADER: self._token}), timeout_s=TIMEOUT_S
        )

    async def _new_token(self, client: LeanClient) -> str:
        answer = await client.put(self._token_target, timeout_s=TIMEOUT_S)
        expect_ok(answer, f"PUT {TOKEN_PATH}")
        token = answer.body.decode("latin-1").strip()
        if (
            not token
            or len(token) > MAX_TOKEN_CHARS
            or not (token.isascii() and token.isprintable())
        ):
            raise Unusable(
                f"it answered PUT {TOKEN_PATH} with {len(answer.body)} bytes that are not a token"
            )
        return token


def _aws_notice(answer: HttpAnswer) -> Notice:
    found = json_object(answer, ACTION_PATH)
    action, time = found.get("action"), found.get("time")
    if not isinstance(action, str) or action not in ACTIONS:
        raise Unusable(
            f"its notice has the action {shown(action)}; known are {', '.join(sorted(ACTIONS))}"
        )
    try:
        ends_at = datetime.fromisoformat(time) if isinstance(time, str) else None
    except ValueError:
        ends_at = None
    if ends_at is None:
        raise Unusable(
            f"its notice ({action}) has the time {shown(time)}, which is not a time in ISO 8601"
        )
    return believed(AwsService.cloud, action, ends_at)


EVENTS_PATH: Final = "/metadata/scheduledevents"
NAME_PATH: Final = "/metadata/instance/compute/name"
AZURE_HEADERS: Final = {"Metadata": "true"}
MAX_NAME_CHARS: Final = 256  # Azure's names have 64 and a number
MAX_EVENTS: Final = 1000  # of all machines of a scale set, in one answer


class AzureService:
    """Implements ``SpotService``. The list has the events of all machines of the same scale set."""

    cloud = "azure"
    interval_s = 2.0  # Azure advises one per second and machine; a machine may have several workers

    def __init__(self, url: str) -> None:
        self._events = Target.of(f"{url}{EVENTS_PATH}?api-version=2020-07-01", AZURE_HEADERS)
        self._name_target = Target.of(
            f"{url}{NAME_PATH}?api-version=2021-02-01&format=text", AZURE_HEADERS
        )
        self._name: str | None = None  # of this virtual machine

    async def look(self, client: LeanClient) -> Notice | None:
        if self._name is None:
            self._name = await self._ask_name(client)
        answer = await client.get(self._events, timeout_s=TIMEOUT_S)
        expect_ok(answer, EVENTS_PATH)
        events = json_object(answer, EVENTS_PATH).get("Events")
        if not isinstance(events, list) or len(events) > MAX_EVENTS:
            raise Unusable(
                f"it answered {EVENTS_PATH} with {shown(answer.body)}, which has no list of Events"
            )
        ours = next((event for event in events if _is_preemption_of(event, self._name)), None)
        return None if ours is None else _azure_notice(ours)

    async def _ask_name(self, client: LeanClient) -> str:
        answer = await client.get(self._name_target, timeout_s=TIMEOUT_S)
        expect_ok(answer, NAME_PATH)
        name = answer.body.decode("utf-8", "replace").strip()
        if not name or len(name) > MAX_NAME_CHARS:
            raise Unusable(
                f"it answered {NAME_PATH} with {shown(answer.body)}, which is not a name"
            )
        return name.lower()


def _is_preemption_of(event: Any, name: str) -> bool:
    if not isinstance(event, dict) or event.get("EventType") != "Preempt":
        return False
    resources = event.get("Resources")
    return isinstance(resources, list) and any(
        isinstance(one, str) and one.lower() == name for one in resources
    )


def _azure_notice(event: dict[str, Any]) -> Notice:
    time = event.get("NotBefore")
    if event.get("EventStatus") == "Started":  # its time has come, and NotBefore is empty
        return believed(AzureService.cloud, "Preempt", datetime.now(UTC))
    try:
        ends_at = parsedate_to_datetime(time) if isinstance(time, str) else None
    except (ValueError, OverflowError):
        ends_at = None
    if ends_at is None:
        raise Unusable(
            f"its Preempt event has the NotBefore {shown(time)}, which is not an HTTP date"
        )
    return believed(AzureService.cloud, "Preempt", ends_at)


PATH: Final = "/computeMetadata/v1/instance/preempted"
# that one request waits: a connection which has silently gone is noticed after it
WAIT_S: Final = 60
NOTICE_S: Final = 30.0  # from the preemption to the end; the service itself names no time
NO_ETAG: Final = "NONE"  # unlike any state: what is so now is answered at once
ETAG: Final = re.compile(r"[0-9A-Za-z]{1,64}")
GCP_HEADERS: Final = {"Metadata-Flavor": "Google"}


class GcpService:
    """Implements ``SpotService``.

    GKE's workload identity puts a server of its own in front, which answers 404 here."""

    cloud = "gcp"
    interval_s = 1.0  # between the answer to one waiting request and the next

    def __init__(self, url: str) -> None:
        self._url = f"{url}{PATH}?wait_for_change=true&timeout_sec={WAIT_S}&last_etag="
        self._etag = NO_ETAG

    async def look(self, client: LeanClient) -> Notice | None:
        answer = await client.get(
            Target.of(self._url + self._etag, GCP_HEADERS), timeout_s=WAIT_S + TIMEOUT_S
        )
        expect_ok(answer, PATH)
        if answer.headers.get("metadata-flavor") != "Google":
            raise Unusable(
                f"its answer to {PATH} lacks the header Metadata-Flavor: Google, so it is another "
                "server's"
            )
        state = answer.body.strip()
        if state == b"TRUE":
            return Notice(self.cloud, "preempted", time.time() + NOTICE_S)
        if state != b"FALSE":
            raise Unusable(f"it answered {PATH} with {shown(answer.body)}, neither TRUE nor FALSE")
        etag = answer.headers.get("etag", "")
        self._etag = etag if ETAG.fullmatch(etag) else NO_ETAG
        return None


log = logging.getLogger(__name__)

# One address for all three. Never through a proxy, and a name that DNS could point elsewhere is not
# asked for.
METADATA_URL: Final = "http://169.254.169.254"
SERVICES: Final[dict[str, Callable[[str], SpotService]]] = {
    "aws": AwsService,
    "gcp": GcpService,
    "azure": AzureService,
}
LIMITS: Final = Limits(max_body_bytes=256 * 1024, connect_timeout_s=3.0, idle_per_server=1)
# at most, between two questions to a service that fails: half of the shortest notice
BACKOFF_S: Final = 15.0
LOG_AGAIN_S: Final = 600.0  # a state that comes and goes is logged no more often
# failures in a row: a single one may be a connection that was closed while it was idle
TROUBLE_AFTER: Final = 2
STOP_S: Final = 1.0  # for the watch's thread to end with the worker; it is a daemon


class SpotWatch:
    """Asks for a spot notice until one comes.

    ``act`` is then called once, in the watch's thread, and nothing is asked after it."""

    def __init__(self, service: SpotService, act: Callable[[Notice], None]) -> None:
        self._service = service
        self._act = act
        self._notice: Notice | None = None
        self._answers = False
        self._failures = 0  # in a row
        self._state = ""
        self._logged_at: dict[str, float] = {}  # by state: one of few words
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(
            target=self._main, name="penstock-spot-notices", daemon=True
        )

    @classmethod
    def of(cls, settings: WorkerSettings, act: Callable[[Notice], None]) -> SpotWatch | None:
        """Make a watch; None where `spot_notices` is off."""
        if settings.spot_notices is None:
            return None
        return cls(SERVICES[settings.spot_notices](settings.spot_notices_url or METADATA_URL), act)

    # -- any thread --------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                log.debug("the watch for spot notices has ended already")
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def figures(self, lane: str) -> Iterator[Sample]:
        cloud, notice = self._service.cloud, self._notice
        yield catalogue.SPOT_ANSWERS(float(self._answers), lane, cloud)
        if notice is not None:
            yield catalogue.SPOT_LEFT(
                max(0.0, notice.ends_at - time.time()), lane, cloud, notice.event
            )

    # -- the watch's thread ------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._watch())
        except asyncio.CancelledError:
            log.debug("no more spot notices are asked for: the worker ends")

    async def _watch(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        client = LeanClient(LIMITS)
        try:
            wait_s = await self.ask(client)
            while wait_s is not None:
                await asyncio.sleep(wait_s)
                wait_s = await self.ask(client)
        finally:
            await client.close()

    async def ask(self, client: LeanClient) -> float | None:
        """Ask once.

        Returns how long to wait before the next; None after a notice, which is the last."""
        try:
            notice = await self._service.look(client)
        except (HttpError, Unusable) as error:
            return self._failed(type(error).__name__, str(error))
        except Exception as error:  # an error in Penstock must end neither the watch nor the worker
            log.debug("a look for a spot notice failed", exc_info=True)
            return self._failed(
                "error", f"{type(error).__name__}: {error}, because of an error in Penstock"
            )
        self._answers, self._failures = True, 0
        if notice is None:
            self._enter("answers", logging.INFO, "it answers, and has no notice for this machine")
            return self._service.interval_s
        self._notice = notice
        self._act(notice)
        return None

    def _failed(self, state: str, why: str) -> float:
        self._answers = False
        self._failures += 1
        wait_s = min(BACKOFF_S, self._service.interval_s * 2.0 ** min(self._failures, 5))
        if self._failures >= TROUBLE_AFTER:
            self._enter(
                state,
                logging.WARNING,
                f"{why}. The worker goes on without its notices, and a SIGTERM drains it as ever; "
                f"it is asked again every {BACKOFF_S:.0f} s at the latest",
            )
        return wait_s

    def _enter(self, state: str, level: int, words: str) -> None:
        if state == self._state:
            return
        self._state = state
        now = time.monotonic()
        if now - self._logged_at.get(state, -LOG_AGAIN_S) >= LOG_AGAIN_S:
            self._logged_at[state] = now
            log.log(
                level,
                "spot notices from the metadata service of %s: %s",
                self._service.cloud,
                words,
            )

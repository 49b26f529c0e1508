"""`penstock flower`: Flower with our settings, our broker page and events that cannot pile up."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Annotated, Any, NoReturn

from celery.events import EventReceiver
from flower.api.tasks import GetQueueLengths
from flower.app import Flower
from flower.command import extract_settings, setup_logging
from flower.events import Events
from flower.options import default_options
from flower.urls import settings as web_settings
from flower.utils import prepend_url
from flower.views.broker import BrokerView
from flower.views.monitor import Metrics
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from tornado.ioloop import IOLoop
from tornado.options import Error, OptionParser
from tornado.web import HTTPError

from penstock_cli.connect import without_password
from penstock_cli.errors import UsageProblem
from penstock_cli.settings import flower_variables
from penstock_ledger import QueueBook, RedisAddress, keys
from penstock_ledger.redaction import log_to_stderr
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import LANES, has_own_model
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.celery_app.app import CONTROL_QUEUE, create_app
from penstock_workers.settings import WorkerSettings

Port = Annotated[int, Field(ge=0, le=65_535)]


class FlowerSettings(BaseModel):
    """None leaves it to Flower's own variable (`FLOWER_PORT`, …), and then to ``DEFAULTS``.

    Nested on purpose: Kubernetes puts a PENSTOCK_FLOWER_PORT=tcp://… into every pod beside a
    Service `penstock-flower`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # user:password, several with commas between; FLOWER_BASIC_AUTH means the same
    auth: SecretStr | None = None
    address: str | None = None
    port: Port | None = None  # 0 takes a free one
    url_prefix: str | None = None
    max_tasks: Annotated[int, Field(ge=100, le=1_000_000)] | None = None
    max_workers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    purge_offline_workers: Annotated[int, Field(ge=1)] | None = None  # seconds
    read_only: bool | None = None


class FlowerRole(WorkerSettings):
    """The settings of a process that runs Flower: a worker's, for the broker."""

    flower: FlowerSettings = FlowerSettings()


# kept in memory, the oldest go first: 226 to 283 MiB in all, where it was measured
MAX_TASKS = 20_000
MAX_WORKERS = 1_000
PURGE_OFFLINE_S = 600  # spot nodes come and go under new names
INSPECT_TIMEOUT_MS = 2_000.0
DEFAULTS: Mapping[str, Any] = {
    "address": "127.0.0.1",
    "port": 5555,
    "max_tasks": MAX_TASKS,
    "max_workers": MAX_WORKERS,
    "purge_offline_workers": PURGE_OFFLINE_S,
    "inspect_timeout": INSPECT_TIMEOUT_MS,
    "tasks_columns": "uuid,state,retries,received,runtime,worker,exception",
    "read_only": True,
    "persistent": False,
    "enable_events": True,
}
PREFIX = "FLOWER_"
_SERVICE_LINK = "tcp://"  # Kubernetes sets FLOWER_PORT=tcp://… beside a Service `flower`


def fill(options: OptionParser, settings: FlowerSettings, variables: Mapping[str, str]) -> None:
    """Set Flower's options: settings win over its variables, those over ``DEFAULTS``.

    Raises UsageProblem."""
    for name, value in DEFAULTS.items():
        setattr(options, name, value)
    for variable, text in variables.items():
        name = variable.removeprefix(PREFIX).lower()
        if name in options and not text.startswith(_SERVICE_LINK):
            _parse(options, variable, name, text)
    for name, value in settings.model_dump(exclude_none=True).items():
        if name != "auth":
            setattr(options, name, value)
    if settings.auth is not None:
        options.basic_auth = settings.auth.get_secret_value().split(",")
    options.url_prefix = (options.url_prefix or "").strip("/") or None
    _check_logins(options.basic_auth or ())
    _check_door(options)


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _parse(options: OptionParser, variable: str, name: str, text: str) -> None:
    try:
        options.parse_command_line(["flower", f"--{name}={text}"], final=False)
    except (Error, ValueError):
        kind = type(DEFAULTS.get(name, "")).__name__
        raise UsageProblem(
            f"{variable} is not usable: Flower's option {name} wants {kind}"
        ) from None


def _check_logins(logins: Iterable[str]) -> None:
    """Raise for a login without a colon, which Flower would accept, and then refuse every user.

    No password is shown.
    """
    for number, login in enumerate(logins, start=1):
        user, colon, password = login.partition(":")
        if not (user and colon and password and login.isascii()):
            raise UsageProblem(
                f"login {number} of PENSTOCK_FLOWER__AUTH (or FLOWER_BASIC_AUTH) is not "
                "`user:password` in ASCII; commas stand between logins, so no password may hold "
                "one"
            )


def _check_door(options: OptionParser) -> None:
    if options.basic_auth or options.auth or options.unix_socket or is_loopback(options.address):
        return
    raise UsageProblem(
        f"Flower would listen on {options.address or 'every address'} without a login, and show "
        "jobs to anyone who reaches it; set PENSTOCK_FLOWER__AUTH=user:password (or "
        "FLOWER_BASIC_AUTH), or keep the address 127.0.0.1"
    )


log = logging.getLogger("penstock.flower")

# events read and not yet taken in: half a minute of what a fleet sends. Twice as many of ``KEPT``
WAITING_MAX = 50_000
KEPT = frozenset({"task-failed", "task-retried", "task-rejected", "task-revoked"})
RETRY_MAX_S = 10.0  # Flower's own doubles for ever
TELL_EACH_S = 60.0


class BoundedEvents(Events):  # type: ignore[misc]  # Flower is untyped
    """Flower reads in a thread and takes in on its loop, through a list without a limit.

    Here it has one.

    ``waiting`` is written by both threads: it may be off by a few, and comes back to 0 only
    roughly.
    """

    state: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waiting = 0
        self.dropped = 0
        self._told_at = 0.0

    def start(self) -> None:
        """Start Flower, and ask for events at once: it asks first after five seconds."""
        super().start()
        if self.enable_events:
            self.io_loop.add_callback(self.on_enable_events)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take an event from the reading thread, or drop it; heartbeats always pass."""
        kind = event["type"]
        if kind.startswith("task-") and self.waiting >= WAITING_MAX * (2 if kind in KEPT else 1):
            self._drop()
            return
        self.waiting += 1
        self.io_loop.add_callback(self._take, event)

    def _take(self, event: Mapping[str, Any]) -> None:
        self.waiting -= 1
        assert self.state is not None, "made with this object"
        self.state.event(event)

    def _drop(self) -> None:
        self.dropped += 1
        if time.monotonic() - self._told_at > TELL_EACH_S:
            self._told_at = time.monotonic()
            log.warning(
                "events come faster than Flower takes them; %d left out: lower event_sample",
                self.dropped,
            )

    def run(self) -> NoReturn:
        """Read until the process ends; the thread is a daemon."""
        wait_s = 1.0
        while True:
            try:
                with self.capp.connection() as connection:
                    receiver = EventReceiver(
                        connection, handlers={"*": self.on_event}, app=self.capp
                    )
                    wait_s = 1.0
                    receiver.capture(limit=None, timeout=None, wakeup=True)
            except Exception as error:
                log.warning("no events: %s; trying again in %.0f s", error, wait_s)
                time.sleep(wait_s)
                wait_s = min(RETRY_MAX_S, 2 * wait_s)


TIMEOUT_S = 5.0  # of Redis, for one page
Row = dict[str, Any]  # as Flower's page and API have it


class QueueTable:
    """Implements what Flower calls a broker."""

    def __init__(self, redis_url: str, consumers: Counter[str]) -> None:
        self._redis_url = redis_url
        self._consumers = consumers

    async def queues(self, names: Iterable[str]) -> list[Row]:
        return await asyncio.get_running_loop().run_in_executor(None, self._read, sorted(names))

    def _read(self, names: list[str]) -> list[Row]:
        options = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        with (
            RedisAddress.parse(self._redis_url).connect(**options) as client,
            client.pipeline() as pipe,
        ):
            names = _with_models(QueueBook(client), names)
            for name in names:
                pipe.llen(name)
                pipe.hlen(keys.unacked(name))
                pipe.zcard(keys.delayed(name))
                pipe.zcard(keys.relayed(name))
            counts = iter(pipe.execute())
        rows: list[Row] = []
        for name in names:
            queued, unacked, delayed, relayed = (next(counts) for _ in range(4))
            rows.append(
                {
                    "name": name,
                    "messages": queued + unacked,
                    "messages_ready": queued + relayed,
                    "messages_unacknowledged": unacked - relayed,
                    "consumers": self._consumers[name],
                }
            )
            if delayed:
                rows.append({"name": f"{name}: retries that wait", "messages": delayed})
        return rows


def _with_models(book: QueueBook, names: list[str]) -> list[str]:
    """Return the queues with those of models, which come and go."""
    models = (queue for lane in filter(has_own_model, LANES) for queue in book.of(queue_name(lane)))
    return sorted({*names, *models})


class OurQueues:
    """Mixed into Flower's handlers."""

    application: Any
    capp: Any

    def get_broker(self) -> QueueTable:
        alive = {
            name for name, worker in self.application.events.state.workers.items() if worker.alive
        }
        consumed = (
            queue["name"]
            for name, info in self.application.workers.items()
            if name in alive
            for queue in info.get("active_queues") or ()
        )
        return QueueTable(self.capp.parts.settings.redis_url, Counter(consumed))

    def get_active_queue_names(self) -> list[str]:
        """Return all queues of the fleet, with and without consumers.

        A full queue without a consumer is what an operator looks for."""
        return [CONTROL_QUEUE, *(queue_name(lane) for lane in LANES)]


class OurBrokerView(OurQueues, BrokerView):  # type: ignore[misc]  # Flower is untyped
    """`/broker`."""


class OurQueueLengths(OurQueues, GetQueueLengths):  # type: ignore[misc]  # Flower is untyped
    """`/api/queues/length`."""


class OurMetrics(Metrics):  # type: ignore[misc]  # Flower is untyped
    """`/metrics`: names of hosts and tasks, which Flower shows without a login."""

    def prepare(self) -> None:
        if not self.current_user:
            raise HTTPError(401)


def handlers(prefix: str | None) -> list[tuple[str, type]]:
    """Return our pages, which go before Flower's own."""
    pages = {
        "/broker": OurBrokerView,
        "/api/queues/length": OurQueueLengths,
        "/metrics": OurMetrics,
    }
    return [(prepend_url(path, prefix) if prefix else path, page) for path, page in pages.items()]


def serve(role: FlowerRole) -> None:
    """Run Flower until SIGTERM or Ctrl-C. Raises UsageProblem."""
    log_to_stderr()
    fill(default_options, role.flower, flower_variables())
    extract_settings()
    setup_logging()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Flower stops its server on KeyboardInterrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)
    flower = build(role)
    port = flower.start_http_server()
    shown = (
        AmqpAddress.parse(role.broker_url).shown
        if role.broker_url
        else without_password(role.redis_url)
    )
    address, prefix = default_options.address or "0.0.0.0", default_options.url_prefix  # noqa: S104 -- what Flower does
    log.info("Flower serves http://%s:%s/%s for %s", address, port, prefix or "", shown)
    try:
        flower.start()
    except (KeyboardInterrupt, SystemExit):
        log.info("Flower ends")
    finally:
        flower.stop()


def build(role: FlowerRole) -> Any:
    """Return Flower with kombu's own transport of Redis, and our events and pages.

    That transport reads events without polling."""
    options = default_options
    app = create_app(role.model_copy(update={"broker_transport": "redis"}))
    events = BoundedEvents(
        app,
        io_loop=IOLoop.current(),
        db=options.db,
        persistent=options.persistent,
        state_save_interval=options.state_save_interval,
        enable_events=options.enable_events,
        max_workers_in_memory=options.max_workers,
        max_tasks_in_memory=options.max_tasks,
    )
    flower = Flower(capp=app, options=options, events=events, **web_settings)
    flower.add_handlers(r".*", handlers(options.url_prefix))
    return flower

"""The Celery app that workers run.

``celery -A penstock_workers.app worker`` has one, ``create_app`` makes one with your settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from celery import Celery, Task
from celery.signals import after_setup_logger, after_setup_task_logger
from kombu.asynchronous import get_event_loop
from kombu.entity import Queue

from penstock_ledger import REDIS_CONNECT_TIMEOUT_S, REDIS_TIMEOUT_S, RedisAddress, keys
from penstock_ledger.redaction import make_safe
from penstock_producer.feed.wire import TASK_NAME, queue_name
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.broker import transport
from penstock_workers.broker.amqp import connect as amqp
from penstock_workers.broker.amqp.connect import QUORUM
from penstock_workers.broker.lease_scripts import Keys
from penstock_workers.broker.leases import Leases
from penstock_workers.celery_app.door_tasks import door_tasks
from penstock_workers.decided_times import DecidedTimes, decided_times
from penstock_workers.item.deliveries import ItemEngine
from penstock_workers.lanes.registry import home_queue, served_by
from penstock_workers.settings import CONTROL_LANE, WorkerSettings

__all__ = ["CONTROL_QUEUE", "PenstockApp", "create_app"]

EngineFactory = Callable[["PenstockApp", "WorkerSettings"], ItemEngine]

CONTROL_QUEUE = queue_name(CONTROL_LANE)
HEARTBEAT_S = 20  # of RabbitMQ's connections: a half-open one is noticed within twice that
HEALTH_CHECK_S = 25  # kombu's: half-open consumer connections are noticed within some 50 s


log = logging.getLogger(__name__)


@dataclass
class Parts:
    """The parts that the pool needs besides Celery's configuration."""

    settings: WorkerSettings
    build_engine: EngineFactory
    leases: Leases = field(default_factory=Leases)
    # of schedules, until events tell of them
    decided: DecidedTimes = field(default_factory=decided_times)
    consumer: Any = None  # Celery's, once it runs


class PenstockApp(Celery):  # type: ignore[misc]  # Celery is untyped
    """A Celery app that carries the parts of a worker."""

    parts: Parts


class ItemTask(Task):  # type: ignore[misc]  # Celery is untyped
    """One document. The item engine runs it; Celery only tracks its start and end."""

    name = TASK_NAME
    Strategy = "penstock_workers.celery_app.handover:item_strategy"
    Request = "penstock_workers.celery_app.requests:ItemRequest"
    send_events = False  # Celery's own: `ItemRequest` sends the events
    acks_late = True
    acks_on_failure_or_timeout = True
    ignore_result = True
    typing = False

    def run(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"{TASK_NAME} runs in workers started with the penstock pool only")


def create_app(settings: WorkerSettings, build_engine: EngineFactory | None = None) -> PenstockApp:
    """Make a new app.

    The only global state it changes is kombu's table of transports."""
    transport.register()
    amqp.register()
    after_setup_logger.connect(_make_log_safe)
    after_setup_task_logger.connect(_make_log_safe)
    parts = Parts(settings, build_engine or _build_engine)
    app = PenstockApp("penstock", set_as_current=False)
    app.parts = parts
    app.conf.update(_configuration(parts))
    app.register_task(ItemTask())
    for task in door_tasks(settings):
        app.register_task(task)
    _leave_out_celerys_own(app)
    return app


def _leave_out_celerys_own(app: PenstockApp) -> None:
    """Remove `celery.map`, `celery.chunks` and the like.

    They let any client run and send other tasks; Penstock needs none of them."""
    app.finalize(auto=True)
    for name in [name for name in app.tasks if name.startswith("celery.")]:
        app.tasks.unregister(name)


def broker_url(settings: WorkerSettings) -> str:
    """Return the broker as kombu reads it.

    ``redis_url`` is written as redis-py reads it, or names Sentinels."""
    if settings.broker_url is not None:
        return AmqpAddress.parse(settings.broker_url).kombu_url
    address = RedisAddress.parse(settings.redis_url)
    if address.sentinels:
        return _sentinel_url(address, for_penstock=settings.broker_transport == "penstock")
    parsed = urlsplit(settings.redis_url)
    url = settings.redis_url
    if parsed.scheme == "unix":
        database = parse_qs(parsed.query).get("db", ["0"])[0]
        url = f"socket://{quote(unquote(parsed.path))}?virtual_host={database}"
    if settings.broker_transport == "penstock":
        return f"penstock+{url}"
    # kombu would not verify the certificate
    if parsed.scheme == "rediss" and "ssl_" not in parsed.query:
        url += ("&" if parsed.query else "?") + "ssl_cert_reqs=required"
    return f"redis+{url}" if parsed.scheme == "unix" else url


def _sentinel_url(address: RedisAddress, *, for_penstock: bool) -> str:
    """Return one URL for Penstock's transport, which gets the address as an option.

    kombu's own needs one URL per Sentinel."""
    host, port = address.sentinels[0]
    if for_penstock:
        return f"penstock+redis://{host}:{port}/{address.parameters.get('db', 0)}"
    server = urlsplit(address.url)
    login = server.netloc.rpartition("@")[0]
    urls = [
        f"sentinel://{login}{'@' if login else ''}{host}:{port}/{address.parameters.get('db', 0)}"
        for host, port in address.sentinels
    ]
    return ";".join(urls)


def _configuration(parts: Parts) -> dict[str, Any]:
    settings = parts.settings
    on_amqp = settings.broker_url is not None
    served = served_by(settings)
    queues = [
        *(served.queues(settings.lane) if served is not None else ()),
        queue_name(settings.lane),
    ]
    if settings.control and CONTROL_QUEUE not in queues:
        queues.insert(0, CONTROL_QUEUE)
    return {
        "broker_url": broker_url(settings),
        "broker_transport_options": _rabbitmq_options(parts)
        if on_amqp
        else _transport_options(parts),
        "broker_use_ssl": _tls(parts.settings),
        "broker_heartbeat": HEARTBEAT_S,  # RabbitMQ's; Redis has none
        "broker_channel_error_retry": True,  # RabbitMQ refuses by closing a channel
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # outlive any outage of Redis
        "broker_pool_acquire_timeout": 30,
        "task_queues": [_queue(settings, name) for name in queues],
        "task_default_queue": CONTROL_QUEUE,
        "task_serializer": "json",
        "accept_content": ["json"],
        # of door tasks; documents' results live in the ledger
        "result_backend": settings.result_backend_url,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_acks_late": True,
        "task_send_sent_event": False,
        "worker_pool": "penstock_workers.celery_app.pool:AsyncioPool",
        "worker_consumer": "penstock_workers.celery_app.consumer:ItemConsumer",
        "worker_concurrency": settings.concurrency,
        "worker_prefetch_multiplier": settings.prefetch_multiplier,
        # restored by a promise that grouped acks pass by
        "worker_enable_prefetch_count_reduction": False,
        # what is in flight is paid for
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_disable_rate_limits": True,  # quotas are the engine's
        "worker_soft_shutdown_timeout": 0,  # the drain has its own deadline
        "worker_send_task_events": False,  # Flower switches them on
        "worker_enable_remote_control": settings.remote_control,
        "worker_hijack_root_logger": False,
        "event_queue_ttl": 5,
        "event_queue_expires": 60,
    }


def _queue(settings: WorkerSettings, name: str) -> Queue:
    return Queue(
        name, routing_key=name, queue_arguments=None if settings.broker_url is None else QUORUM
    )


def consume(
    app: PenstockApp, settings: WorkerSettings, queues: Sequence[str], no_longer: Sequence[str]
) -> None:
    """Take messages of these queues, and of the others no more.

    A lane knows its models once it is up, and they may change.

    Called on the item loop. The hub thread waits until the lane is up, and owns the queues from
    then on."""
    change = partial(_change_queues, app, [_queue(settings, name) for name in queues], no_longer)
    hub = get_event_loop()
    if app.parts.consumer is None or hub is None:
        change()
    else:
        hub.call_soon(change)


def _change_queues(app: PenstockApp, queues: Sequence[Queue], no_longer: Sequence[str]) -> None:
    known, consumer = app.amqp.queues, app.parts.consumer
    added = [queue for queue in queues if queue.name not in known.consume_from]
    dropped = [name for name in no_longer if name in known.consume_from]
    for queue in added:
        known.select_add(queue)
    known.deselect(dropped)
    if consumer is None or consumer.task_consumer is None:
        return  # it takes those that are selected when it connects
    try:
        for queue in added:
            consumer.add_task_queue(queue.name)
        for name in dropped:
            consumer.cancel_task_queue(name)
    except (*consumer.connection_errors, *consumer.channel_errors) as error:
        log.debug("the queues are changed with the next connection: %s", error)


def _transport_options(parts: Parts) -> dict[str, Any]:
    """Return the options of the transport, the keys of what a worker holds among them.

    They name its model, or its lane, so that an autoscaler can count.

    Leases that ended are swept by the workers of the same model, and where it has none by the
    control loop."""
    timeout_s, queue = parts.settings.visibility_timeout_s, home_queue(parts.settings)
    options: dict[str, Any] = {
        "visibility_timeout": timeout_s,
        "socket_timeout": REDIS_TIMEOUT_S,
        "socket_connect_timeout": REDIS_CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_S,
        "queue_order_strategy": "penstock_workers.broker.connections:QueueOrder",
        "priority_steps": [0],  # lanes are queues
        "unacked_key": keys.unacked(queue),
        "unacked_index_key": keys.unacked_index(queue),
        "unacked_mutex_key": keys.unacked_mutex(queue),
    }
    address = RedisAddress.parse(parts.settings.redis_url)
    if parts.settings.broker_transport == "penstock":
        return options | {"leases": parts.leases, "address": address}
    if address.sentinels:
        options |= {"master_name": address.service, "sentinel_kwargs": address.sentinel_parameters}
    # Stock kombu never renews: an item slower than this is run twice: the ledger keeps one result,
    # but both calls cost.
    return options | {
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "unacked_restore_limit": 500,
        "visibility_timeout": max(timeout_s, 3600.0),
    }


def _rabbitmq_options(parts: Parts) -> dict[str, Any]:
    """Return the Redis options for a worker's consumers on RabbitMQ."""
    timeout_s, queue = parts.settings.visibility_timeout_s, home_queue(parts.settings)
    return {
        "leases": parts.leases,
        "address": RedisAddress.parse(parts.settings.redis_url),
        "keys": Keys(keys.unacked(queue), keys.unacked_index(queue), timeout_s),
    }


def _tls(settings: WorkerSettings) -> dict[str, Any] | None:
    """Return TLS options for kombu's own Redis transport.

    Penstock's reads them from the address."""
    if settings.broker_url is not None:
        return AmqpAddress.parse(settings.broker_url).tls
    address = RedisAddress.parse(settings.redis_url)
    if settings.broker_transport == "penstock" or not (address.sentinels and address.over_tls):
        return None
    tls = {name: value for name, value in address.parameters.items() if name.startswith("ssl_")}
    return {"ssl_cert_reqs": "required", **tls}


def _make_log_safe(logger: logging.Logger, **_: Any) -> None:
    """Keep secrets out of the log, whose handlers Celery's command line sets up itself."""
    make_safe(logger)


def _build_engine(app: PenstockApp, settings: WorkerSettings) -> ItemEngine:
    from penstock_workers.build import build_engine

    return build_engine(
        settings, consume=partial(consume, app, settings), decided=app.parts.decided
    )

"""The parts of Celery and kombu that we lean on and that they do not promise.

One of these failing names what moved."""

from __future__ import annotations

import inspect
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from attempts import dead
from celery import Celery
from celery.events.dispatcher import EventDispatcher
from celery.worker import request as celery_request
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu.asynchronous import Hub
from kombu.connection import Connection
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from servers import RedisServer

from penstock_workers.broker import transport
from penstock_workers.celery_app import events
from penstock_workers.celery_app.events import EventSample
from penstock_workers.item.outcome import Dead, Retry


@pytest.fixture
def app(redis_server: RedisServer) -> Celery:
    return Celery("surfaces", broker=redis_server.url, set_as_current=False)


class TestRedisTransport:
    def test_the_poller_consumes_through_two_methods(self, redis_server: RedisServer) -> None:
        """kombu's poller sends with `_brpop_start`, reads with `_brpop_read`, and knows by
        `_in_poll` what is under way."""
        with Connection(redis_server.url) as connection:
            channel: Any = connection.default_channel
            assert channel.handlers["BRPOP"] == channel._brpop_read
            assert not channel._in_poll
        source = inspect.getsource(kombu_redis.MultiChannelPoller)
        assert (
            "if not channel._in_poll:  # send BRPOP\n            channel._brpop_start()" in source
        )
        assert "chan.handlers[type]()" in source

    def test_the_connection_parameters_can_be_asked_for(self, redis_server: RedisServer) -> None:
        """`_connparams` returns what redis-py's connection pool takes."""
        with Connection(redis_server.url) as connection:
            channel: Any = connection.default_channel
            parameters = channel._connparams()
        assert (parameters["host"], parameters["port"], parameters["db"]) == (
            "127.0.0.1",
            redis_server.port,
            0,
        )
        assert {"socket_timeout", "connection_class"} <= parameters.keys()

    def test_prefetch_is_counted_in_two_fields(self, redis_server: RedisServer) -> None:
        """On the stock transport a message counts from `_delivered` until its tag is in
        `_dirty`."""
        with Connection(redis_server.url) as connection:
            qos: Any = virtual.QoS(connection.default_channel, prefetch_count=1)
            qos._delivered["tag"] = object()
            assert not qos.can_consume()
            virtual.QoS.ack(qos, "tag")
            assert "tag" in qos._dirty
            assert qos.can_consume()
            qos._delivered.clear()

    def test_a_channel_carries_the_option_names(self) -> None:
        """Transport options become channel attributes by `from_transport_options`."""
        assert {"visibility_timeout", "priority_steps", "unacked_key"} <= set(
            kombu_redis.Channel.from_transport_options
        )

    def test_aliases_name_transports(self, redis_server: RedisServer) -> None:
        """Both of Penstock's schemes lead to its transport, over TCP in both forms and over a URL
        of any database."""
        transport.register()
        for url in (
            f"penstock+{redis_server.url}",
            redis_server.url.replace("redis", "redisbulk", 1),
        ):
            with Connection(url) as connection:
                channel: Any = connection.default_channel
                parameters = channel._connparams()
                assert isinstance(connection.transport, transport.Transport)
                assert (parameters["port"], parameters["db"]) == (redis_server.port, 0)

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            (
                "penstock+redis://u:p%40w@h:1/2",
                {"host": "h", "port": 1, "db": 2, "username": "u", "password": "p@w"},
            ),
            ("penstock+redis://h", {"host": "h", "port": 6379, "db": 0}),
            ("penstock+socket:///run/r.sock?virtual_host=3", {"path": "/run/r.sock", "db": 3}),
            ("penstock+rediss://h:1/0", {"ssl_cert_reqs": "required"}),
        ],
    )
    def test_urls_become_parameters(
        self, url: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every form of broker URL reaches redis-py as it was meant."""
        monkeypatch.setattr(redis.Redis, "ping", lambda _self: True)
        transport.register()
        channel: Any = Connection(url).default_channel
        parameters = channel._connparams()
        assert {name: parameters[name] for name in expected} == expected


class TestHub:
    def test_call_soon_wakes_the_poller_from_another_thread(self) -> None:
        """A callback from another thread runs at once, not when the next timer is due."""
        hub = Hub()
        reader, writer = socket.socketpair()
        hub.add_reader(reader, lambda: None)  # a hub without sockets does not poll
        threading.Timer(0.05, hub.stop).start()  # which is a call_soon
        began = time.monotonic()
        hub.run_forever()
        assert time.monotonic() - began < 0.9  # its poll alone takes a second
        hub.close()
        reader.close()
        writer.close()

    def test_a_signal_ends_the_poll(self) -> None:
        """A signal's handler interrupts the poll, which then waits on (PEP 475): what another
        thread calls soon ends it, as the pool does when a worker is asked to end."""
        hub = Hub()
        reader, writer = socket.socketpair()
        hub.add_reader(reader, lambda: None)

        def handler(*_: object) -> None:
            threading.Thread(target=hub.stop).start()

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            began = time.monotonic()
            hub.run_forever()
            assert time.monotonic() - began < 0.9  # its poll alone takes a second
        finally:
            signal.signal(signal.SIGUSR1, before)
            hub.close()
            reader.close()
            writer.close()

    def test_a_timer_bounds_the_poll(self) -> None:
        """`fire_timers` returns the time until the next timer, by which the idle worker asks
        again."""
        hub = Hub()
        hub.call_repeatedly(0.05, lambda: None)
        assert hub.fire_timers() <= 0.05


class TestRequest:
    @pytest.fixture
    def made(self, app: Celery) -> Any:
        """A request as the strategy makes it, and what it passed to the pool."""
        calls: list[dict[str, Any]] = []

        def apply_async(_target: Any, **options: Any) -> None:
            calls.append(options)

        def body() -> None: ...

        task = app.task(name="surfaces.task", acks_late=True, shared=False)(body)

        pool = SimpleNamespace(apply_async=apply_async)
        create: Any = celery_request.create_request_cls  # Celery's types know no app but its proxy
        request_class = create(celery_request.Request, task, pool, "host", None, app=app)
        pool.apply_async = None  # captured already
        message = SimpleNamespace(
            headers={"id": "i", "task": "surfaces.task"},
            body="",
            content_type=None,
            content_encoding=None,
            payload=[(), {"k": 1}, {}],
            delivery_info={"routing_key": "q", "redelivered": True},
            properties={},
        )
        acks: list[str] = []
        request = request_class(message, app=app, task=task, on_ack=lambda *_: acks.append("first"))
        return request, calls, acks

    def test_it_passes_bound_methods_to_the_captured_pool(self, made: Any) -> None:
        """`create_request_cls` captures `pool.apply_async`; the callbacks lead back to the request
        and its parts."""
        request, calls, _ = made
        request.execute_using_pool(None)
        (options,) = calls
        assert options["accept_callback"].__self__ is request
        assert options["args"][:2] == ("surfaces.task", "i")
        assert request.request_dict["kwargs"] == {"k": 1}
        assert request.delivery_info["redelivered"] is True

    def test_it_shows_what_acknowledges_it(self, made: Any) -> None:
        """`on_ack` is what it was made with, called once, by `acknowledge`, when a
        late-acknowledged task succeeds."""
        request, _, acks = made
        request.on_ack("by its public name")
        request.on_success((0, None, 0.1))
        request.acknowledge()
        assert acks == ["first", "first"]
        assert request.acknowledged

    @pytest.mark.parametrize("outcome", [dead("no"), Retry(1, "429")])
    def test_our_reports_pass_for_exception_infos(self, made: Any, outcome: Dead | Retry) -> None:
        """A failure or a retry without a traceback is acknowledged like any other."""
        request, _, acks = made
        request.on_success(events.celery_result(outcome))
        assert acks == ["first"]

    def test_acceptance_enters_it_among_the_active(self, made: Any) -> None:
        """`on_accepted` is what `inspect active` and the heartbeat's count rest on; `task_ready`
        takes it out."""
        request, _, _ = made
        request.on_accepted(7, time.monotonic())
        assert request in state.active_requests
        assert request.worker_pid == 7
        state.task_ready(request)
        assert request not in state.active_requests


class TestConsumer:
    def test_it_flushes_the_pool_when_its_connection_is_lost(self) -> None:
        """`Consumer.on_close` forgets what it has not handed over and calls `pool.flush`."""
        flushed: list[bool] = []
        consumer: Any = SimpleNamespace(
            controller=None,
            task_buckets={},
            timer=None,
            pool=SimpleNamespace(flush=lambda: flushed.append(True)),
        )
        Consumer.on_close(consumer)
        assert flushed == [True]

    @pytest.mark.parametrize("method", ["on_unknown_message", "on_unknown_task", "on_invalid_task"])
    def test_it_rejects_what_it_cannot_run(self, method: str) -> None:
        """Celery rejects these messages, which our transport takes as: keep aside."""
        assert "message.reject_log_error(logger, self.connection_errors)" in inspect.getsource(
            getattr(Consumer, method)
        )

    def test_its_decode_error_is_the_one_that_acknowledges(self) -> None:
        """`on_decode_error` is a method that Celery looks up on the consumer, so Penstock's
        replaces it."""
        assert "message.ack()" in inspect.getsource(Consumer.on_decode_error)
        assert "self.on_decode_error(message, exc)" in inspect.getsource(
            Consumer.create_task_handler
        )


class TestEvents:
    def test_the_buffer_has_a_limit_and_a_signal(self, app: Celery) -> None:
        """Without `on_send_buffered`, task events wait for a flush or for `buffer_limit` of
        them."""
        sent: list[int] = []
        with app.connection() as connection:
            dispatcher: Any = EventDispatcher(connection, app=app, buffer_group=["task"])
            dispatcher.buffer_limit, dispatcher.on_send_buffered = 3, None
            dispatcher._publish = lambda events, *_: sent.append(len(events))
            for _ in range(4):
                dispatcher.send("task-succeeded", uuid="x")
            assert sent == [3]
            dispatcher.flush()
            assert sent == [3, 1]

    def test_groups_travel_as_one_message_and_arrive_one_by_one(self, app: Celery) -> None:
        """A flush is one PUBLISH of a list, which receivers, Flower's among them, take apart; given
        timestamps are kept."""
        seen: list[dict[str, Any]] = []
        with app.connection() as sending, app.connection() as receiving:
            receiver = app.events.Receiver(receiving, handlers={"*": seen.append})
            capture = receiver.itercapture(timeout=5, wakeup=False)
            next(capture, None)
            dispatcher: Any = EventDispatcher(sending, app=app, buffer_group=["task"])
            dispatcher.buffer_limit, dispatcher.on_send_buffered = 100, None
            client = sending.default_channel.client
            before = client.info("commandstats").get("cmdstat_publish", {}).get("calls", 0)
            for number in range(50):
                dispatcher.send("task-received", uuid=str(number), timestamp=1_000.0 + number)
            dispatcher.flush()
            for _ in capture:
                if len(seen) == 50:
                    break
            assert client.info("commandstats")["cmdstat_publish"]["calls"] - before == 1
        assert [event["uuid"] for event in seen] == [str(number) for number in range(50)]
        assert [event["timestamp"] % 3_600 for event in seen] == [
            1_000.0 + number for number in range(50)
        ]

    def test_what_redis_did_not_take_waits_in_a_deque(self, app: Celery) -> None:
        """Groups that could not be published are kept in `_outbound_buffer`, which we bound: the
        oldest go first."""
        timers: list[Any] = []
        later: list[Any] = []
        with app.connection() as connection:
            dispatcher: Any = EventDispatcher(
                connection, app=app, buffer_group=["task"], groups=["worker", "task"]
            )
            consumer: Any = SimpleNamespace(
                event_dispatcher=dispatcher,
                timer=SimpleNamespace(
                    call_repeatedly=lambda *call: timers.append(call),
                    call_after=lambda *call: later.append(call),
                ),
            )
            events.gather_events(consumer, EventSample(None))
            assert [seconds for seconds, *_ in timers] == [events.FLEET_LOOK_EACH_S]
            later.pop()[1]()
            assert not later, "it wakes an idle worker"
            dispatcher.producer = SimpleNamespace(publish=_refuse)
            for number in range(2 * events.UNSENT_MAX):
                dispatcher.send("task-succeeded", uuid=str(number))
                ((seconds, flush),) = later
                later.clear()
                flush()
                assert seconds == events.FLUSH_EACH_S
            kept = [group[0]["uuid"] for group, _ in dispatcher._outbound_buffer]
        assert kept[-1] == str(2 * events.UNSENT_MAX - 1)
        assert len(kept) == events.UNSENT_MAX


def _refuse(*_: Any, **__: Any) -> None:
    raise ConnectionError("gone")

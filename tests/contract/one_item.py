"""One document through a real worker in this process, with the code that it enters written down.

Run as a program: `one_item.py <redis url> <folder>` writes `entered.json` there, three lists,
`feed`, `item` and `idle`. Each entry is "file:function", of Penstock's Python code, entered while
the feeder published the document, from then until the worker had acknowledged it, and in a while
before that in which the worker had nothing to do.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import CodeType, FrameType

from celery.signals import worker_ready

from penstock_ledger import Meta, OutcomeStore, RedisAddress, RedisLedger, open_database
from penstock_producer import Producer, ProducerSettings
from penstock_producer.feed.feeder import Feeder
from penstock_workers.__main__ import _worker_main
from penstock_workers.broker.transport import Channel
from penstock_workers.celery_app.app import create_app
from penstock_workers.control.loop import Control
from penstock_workers.heartbeat import Heartbeat
from penstock_workers.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
OURS = tuple(
    f"{ROOT}/{folder}/" for folder in ("producer", "workers", "ledger", "ratelimit", "cli")
)
ENTERED = "entered.json"
IDLE_POLLS = 5  # a worker that waits asks for messages twice a second
ITEM_S = 60.0
SPEC = {"lane": "api", "model": "m", "endpoint": "/v1/chat/completions", "prompt": "{text}"}
ANSWER = (
    b'{"choices":[{"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":1}}'
)


class Recorder:
    """Notes each piece of our code that is entered: in the worker's threads under the phase that is
    on, and in this program's own thread within one step of the feeder."""

    def __init__(self) -> None:
        self.entered: dict[str, set[CodeType]] = {"feed": set(), "item": set(), "idle": set()}
        self._phase: set[CodeType] = set()
        self._is_feeding = False
        self._step = Feeder.step.__code__
        self._poll = Channel._brpop_start.__code__
        self._polls = 0

    def phase(self, name: str | None) -> None:
        self._phase = set() if name is None else self.entered[name]

    def in_worker(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._phase.add(frame.f_code)
            if frame.f_code is self._poll:
                self._polls += 1

    def in_control(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is self._step:
            self._is_feeding = event == "call"
        if event == "call" and self._is_feeding:
            self.entered["feed"].add(frame.f_code)

    def wait_for_polls(self, number: int) -> None:
        """Until the worker has asked for messages so many times more: each is one turn of its hub,
        however busy the machine."""
        last = self._polls + number
        until(lambda: self._polls >= last, f"{number} polls of the worker")

    def found(self, name: str) -> list[str]:
        codes = [code for code in self.entered[name] if code.co_filename.startswith(OURS)]
        return sorted(
            f"{os.path.relpath(code.co_filename, ROOT)}:{code.co_qualname}" for code in codes
        )


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, format: str, *arguments: object) -> None:
        """The output of this program is one JSON object."""


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + ITEM_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {ITEM_S:g} s: {what}")
        time.sleep(0.01)


def send_one(settings: WorkerSettings, recorder: Recorder, folder: Path) -> None:
    """Submit one document, feed it, and wait until its message is acknowledged.

    In a thread beside the worker."""
    recorder.wait_for_polls(IDLE_POLLS)  # what a worker does at first and then seldom is over
    recorder.phase("idle")
    recorder.wait_for_polls(IDLE_POLLS)
    beat = Heartbeat._beat.__code__  # which comes now and then, beside an item or not
    until(lambda: beat in recorder.entered["idle"], "a heartbeat")
    recorder.phase(None)
    documents = folder / "one.jsonl"
    documents.write_text('{"id": "d", "text": "t"}\n')
    database = open_database(settings.database_url)
    with Producer(ProducerSettings(database_url=settings.database_url)) as producer:
        job = producer.submit(documents, SPEC)
    redis = RedisAddress.parse(settings.redis_url).connect(socket_timeout=ITEM_S)
    outcomes = OutcomeStore(database)
    control = Control(settings, database, RedisLedger(redis, Meta(database).epoch()), owner="test")
    recorder.phase("item")
    sys.setprofile(recorder.in_control)
    while not redis.exists(f"penstock:{job.job_id}:1:window"):
        control.tick()
    sys.setprofile(None)
    until(lambda: outcomes.counts(job.job_id).succeeded, "the document has its result")
    until(lambda: not redis.exists("unacked.api"), "the message is acknowledged")
    recorder.wait_for_polls(2)  # what the hub does after it is over
    recorder.phase(None)
    database.close()


def main(redis_url: str, folder: Path) -> None:
    logging.disable(logging.WARNING)
    provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    settings = WorkerSettings.load(
        lane="api",
        redis_url=redis_url,
        database_url=f"sqlite:///{folder}/ledger.db",
        control=False,
        concurrency=4,
        providers={"default": {"base_url": f"http://127.0.0.1:{provider.server_port}/v1"}},
    )
    database = open_database(settings.database_url)
    database.migrate()
    # as in a fleet that is at work: its workers have started since Redis was rebuilt
    RedisLedger(RedisAddress.parse(redis_url).connect(), Meta(database).epoch()).install_epoch()
    database.close()
    recorder, failed = Recorder(), list[BaseException]()

    def send() -> None:
        try:
            send_one(settings, recorder, folder)
        except BaseException as error:
            failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    app = create_app(settings)
    threading.setprofile(recorder.in_worker)
    sys.setprofile(recorder.in_worker)

    def ready(**_: object) -> None:
        threading.setprofile(None)
        threading.Thread(target=send).start()
        threading.setprofile(recorder.in_worker)

    worker_ready.connect(ready)
    _worker_main(app, "one-item@%h")
    sys.setprofile(None)
    for error in failed:
        raise error
    if not recorder.entered["item"]:
        raise RuntimeError("the worker ended before it had an item")
    (folder / ENTERED).write_text(
        json.dumps({name: recorder.found(name) for name in recorder.entered})
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

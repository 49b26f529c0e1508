"""Put Flower together and run it until SIGTERM."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any

from flower.app import Flower
from flower.command import extract_settings, setup_logging
from flower.options import default_options
from flower.urls import settings as web_settings
from tornado.ioloop import IOLoop

from penstock_cli.connect import without_password
from penstock_cli.flower.backlog import BoundedEvents
from penstock_cli.flower.options import fill
from penstock_cli.flower.queues import handlers
from penstock_cli.flower.settings import FlowerRole
from penstock_cli.settings import flower_variables
from penstock_ledger.log_lines import log_to_stderr
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.celery_app.app import create_app

log = logging.getLogger("penstock.flower")


def serve(role: FlowerRole) -> None:
    """Returns after SIGTERM or Ctrl-C. Raises UsageProblem."""
    log_to_stderr()
    fill(default_options, role.flower, flower_variables())
    extract_settings()
    setup_logging()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # Flower stops its server on KeyboardInterrupt
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
    """Flower with kombu's own transport of Redis, which reads events without polling, and our
    events and pages."""
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

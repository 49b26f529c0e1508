"""What `penstock doctor` finds of RabbitMQ, where that is the broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from penstock_cli.doctor.finding import Finding, Verdict
from penstock_producer.reporting.text import safe
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.broker.amqp.connect import AMQP_ERRORS, CHANNEL_ERRORS, connect
from penstock_workers.broker.amqp.publisher import QUORUM, Publisher

SUBJECT = "rabbitmq"
MINIMUM_VERSION = (3, 10)  # the oldest that fleets were seen to run on
FIXES = (
    ("ACCESS_REFUSED", "correct user and password in broker_url (PENSTOCK_BROKER_URL), %-encoded"),
    (
        "NOT_ALLOWED",
        "correct the vhost in broker_url, or let the user in: rabbitmqctl set_permissions -p VHOST "
        "USER …",
    ),
    (
        "InvalidCommand",
        "correct the vhost in broker_url, or let the user in: rabbitmqctl set_permissions -p VHOST "
        "USER …",
    ),
)


def rabbitmq(url: str) -> Iterator[Finding]:
    """Whether it answers, is new enough, and lets us have a quorum queue."""
    address = AmqpAddress.parse(url)
    try:
        broker = connect(address)
    except AMQP_ERRORS as error:
        said = safe(str(error))
        fix = next(
            (fix for sign, fix in FIXES if sign in said),
            "start it, or set broker_url (PENSTOCK_BROKER_URL)",
        )
        yield Finding(Verdict.BAD, SUBJECT, f"{address.shown}: {said}", fix)
        return
    try:
        properties: Any = broker.connection.server_properties
        version = str(properties.get("version", "?"))
        yield Finding(
            Verdict.GOOD, SUBJECT, f"{address.shown} answers, {properties.get('product')} {version}"
        )
        yield _version(version)
        yield _queue(broker.connection)
    except AMQP_ERRORS as error:
        yield Finding(
            Verdict.BAD, SUBJECT, f"{address.shown}: {safe(str(error))}", "see RabbitMQ's log"
        )
    finally:
        broker.release()


def _version(version: str) -> Finding:
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    wanted = ".".join(map(str, MINIMUM_VERSION))
    if parts >= MINIMUM_VERSION:
        return Finding(Verdict.GOOD, SUBJECT, f"{version}, at least {wanted}")
    return Finding(
        Verdict.BAD, SUBJECT, f"{version} is too old", f"upgrade RabbitMQ to {wanted} or newer"
    )


def _queue(connection: Any) -> Finding:
    """Declares a queue of its own, publishes to it, and deletes it again."""
    name = f"penstock.doctor.{os.getpid()}"
    channel = connection.channel()
    try:
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=QUORUM)
        try:
            publisher = Publisher(channel, name)
            publisher.publish([("doctor", b"{}")], timeout_s=5.0)
            refused = publisher.unconfirmed()
        finally:
            channel.queue_delete(name)
    except CHANNEL_ERRORS as error:
        fix = (
            "give the user all three rights: rabbitmqctl set_permissions -p VHOST USER '.*' '.*' "
            "'.*'"
        )
        return Finding(Verdict.BAD, SUBJECT, f"no quorum queue can be had: {safe(str(error))}", fix)
    if refused:
        return Finding(
            Verdict.BAD,
            SUBJECT,
            "it refused a message",
            "see RabbitMQ's log and alarms: memory, disk, quorum",
        )
    return Finding(
        Verdict.GOOD, SUBJECT, "quorum queues can be declared, and confirm what they are sent"
    )

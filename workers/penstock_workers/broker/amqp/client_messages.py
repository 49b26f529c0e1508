"""Messages that a Celery client has sent to RabbitMQ itself, such as `penstock.submit`: they are
written to Redis in kombu's format, and from then on are treated like any other message."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

from kombu.utils.json import dumps

from penstock_workers.broker.amqp.relay_scripts import Arrived

_PROPERTIES = ("correlation_id", "reply_to", "priority", "expiration", "timestamp")


def arrived(queue: str, message: Any) -> Arrived:
    """From py-amqp's message.

    Its tag is the task's id, so a second delivery is recognised; each retry gets
    a tag of its own."""
    properties = message.properties
    headers = properties.get("application_headers") or {}
    tag = _tag(headers)
    body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    text = dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-type": properties.get("content_type"),
            "content-encoding": properties.get("content_encoding"),
            "headers": headers,
            "properties": {
                **{name: properties[name] for name in _PROPERTIES if name in properties},
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "body_encoding": "base64",
                "delivery_tag": tag,
            },
        }
    )
    return Arrived(queue, tag, text.encode(), f'[{text},"",{dumps(queue)}]')


def _tag(headers: dict[str, Any]) -> str:
    task_id, retries = headers.get("id"), headers.get("retries")
    if not isinstance(task_id, str) or not task_id:
        return str(uuid4())
    return f"{task_id}~r{retries}" if isinstance(retries, int) and retries else task_id

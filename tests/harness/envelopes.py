"""A whole queue message, taken apart, for tests that look into queues."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from penstock_producer.feed.wire import ItemMessage, decode_item


class Envelope(NamedTuple):
    message: ItemMessage
    tag: str
    queue: str
    retries: int


def decode_envelope(raw: bytes) -> Envelope:
    outer = orjson.loads(raw)
    _, kwargs, _ = orjson.loads(outer["body"])
    properties, headers = outer["properties"], outer["headers"]
    routing_key = properties["delivery_info"]["routing_key"]
    return Envelope(
        decode_item(kwargs, headers),
        properties["delivery_tag"],
        routing_key,
        headers.get("retries") or 0,
    )

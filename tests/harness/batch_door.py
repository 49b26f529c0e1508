"""A fleet with a door for batches in front of it, and what tests send through it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
from doors import door
from fleet import Fleet, Process, until
from openai.types import Batch
from servers import free_port

from penstock_gateway.settings import BatchFields, GatewayFields, GatewaySettings
from penstock_producer.job.provider_facts import ProviderFacts

ENDS = {"completed", "failed", "expired", "cancelled"}


@dataclass
class BatchDoor:
    """The fleet, and the door's URL."""

    fleet: Fleet
    url: str
    settings: GatewaySettings
    seen: dict[str, list[Batch]] = field(default_factory=dict)  # what each batch has looked like

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def create(self, client: openai.OpenAI, lines: Iterable[Any], **given: Any) -> Batch:
        file = client.files.create(file=("in.jsonl", io.BytesIO(as_jsonl(lines))), purpose="batch")
        asked: dict[str, Any] = {
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        } | given
        return client.batches.create(input_file_id=file.id, **asked)

    def look(self, client: openai.OpenAI, batch_id: str) -> Batch:
        batch = client.batches.retrieve(batch_id)
        self.seen.setdefault(batch_id, []).append(batch)
        return batch

    def wait(
        self, client: openai.OpenAI, batch_id: str, states: set[str] = ENDS, timeout_s: float = 60.0
    ) -> Batch:
        found: list[Batch] = []

        def reached() -> bool:
            found[:] = [self.look(client, batch_id)]
            return found[0].status in states

        try:
            until(reached, timeout_s, f"the batch is one of {sorted(states)}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {found[0].to_dict()}") from None
        return found[0]


def door_fields(**batches: Any) -> GatewayFields:
    fast: dict[str, Any] = {"interval_s": 0.05, "lease_s": 1.0} | batches
    return GatewayFields(port=free_port(), batches=BatchFields(**fast))


def settings_for(
    fleet: Fleet, providers: Mapping[str, ProviderFacts] | None = None, **batches: Any
) -> GatewaySettings:
    fields = door_fields(**batches).model_copy(update={"files": str(fleet.folder / "files")})
    known = {"default": ProviderFacts(base_url=fleet.provider.url)} | dict(providers or {})
    return GatewaySettings(
        database_url=fleet.database_url,
        redis_url=fleet.store.url,
        gateway=fields,
        providers=known,
    )


@contextmanager
def batch_door(
    fleet: Fleet, providers: Mapping[str, ProviderFacts] | None = None, **batches: Any
) -> Iterator[BatchDoor]:
    """A door in this process."""
    settings = settings_for(fleet, providers, **batches)
    with door(settings) as url:
        yield BatchDoor(fleet, url, settings)


def door_of_fleet(fleet: Fleet, settings: GatewaySettings) -> Process:
    """The same as a process, which can be killed."""
    fields = settings.gateway
    given = {
        "gateway__port": fields.port,
        "gateway__files": fields.files,
        "gateway__batches__interval_s": fields.batches.interval_s,
        "gateway__batches__lease_s": fields.batches.lease_s,
    }
    return fleet.command("door", "gateway", **given)


def chat(number: int, name: str = "doc", model: str = "sim", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"review {number}"}]
    return line(f"{name}-{number}", {"model": model, "messages": messages} | body)


def line(
    custom_id: Any, body: Any, url: str = "/v1/chat/completions", method: str = "POST"
) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def as_jsonl(lines: Iterable[Any]) -> bytes:
    return b"".join(
        (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines
    )


def read(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return (
        []
        if file_id is None
        else [json.loads(one) for one in client.files.content(file_id).text.splitlines()]
    )

"""A fleet whose provider speaks every API, with a door in front of each, and the clients' own SDKs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import anthropic
import openai
from doors import door
from fleet import Fleet
from servers import free_port

from penstock_gateway.settings import DirectFields, GatewayFields, GatewaySettings
from penstock_producer.job.endpoints import Kind
from penstock_producer.job.provider_facts import ProviderFacts

KINDS: tuple[Kind, ...] = ("openai", "anthropic", "gemini")
MODEL = "sim-small"


@contextlib.contextmanager
def fleet_of_kinds(folder: Path, *, lease_s: float | None = None) -> Iterator[Fleet]:
    """Start a worker and a provider that is asked under a name for each kind."""
    settings: dict[str, str] = {f"providers__{kind}__kind": kind for kind in KINDS}
    if lease_s is not None:
        settings["visibility_timeout_s"] = f"{lease_s:g}"
        # a call that control queues, between the two writes of its door, is answered in one piece
        settings["control_interval_s"] = "5"
    with Fleet(folder, appendonly=False, settings=settings) as fleet:
        settings |= {f"providers__{kind}__base_url": fleet.provider.root for kind in KINDS}
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0")
        fleet.control()
        fleet.ready(fleet.worker(16))
        with fleet.explained():
            yield fleet


@contextlib.contextmanager
def doors_of_kinds(fleet: Fleet) -> Iterator[Mapping[str, str]]:
    """Start a server in front of each kind of provider."""
    facts: dict[str, ProviderFacts] = {
        kind: ProviderFacts(kind=kind, base_url=fleet.provider.root) for kind in KINDS
    }
    with contextlib.ExitStack() as stack:
        yield {kind: stack.enter_context(door(settings_for(fleet, facts, kind))) for kind in KINDS}


def settings_for(
    fleet: Fleet, facts: Mapping[str, ProviderFacts], provider: str
) -> GatewaySettings:
    fields = GatewayFields(
        port=free_port(),
        files=str(fleet.folder / f"files-{provider}"),
        direct=DirectFields(provider=provider),
    )
    return GatewaySettings(
        database_url=fleet.database_url,
        redis_url=fleet.store.url,
        providers=dict(facts),
        gateway=fields,
    )


def chats(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def claude(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

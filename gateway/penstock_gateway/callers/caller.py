"""A caller, the dependency by which a route names its right, and what a tenant may read of jobs.

A request comes from the peer's address, or from the one that a trusted proxy names. Each proxy adds
the address of its own peer at the end of X-Forwarded-For, so from the end the first one that is no
trusted proxy asks. What stands before that was written by who asks, and may say anything.

A tenant reads sentences of the ledger without places of this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from starlette.requests import HTTPConnection, Request

from penstock_gateway.middleware import is_id
from penstock_gateway.refused import Refused
from penstock_ledger import SCOPES, Whose
from penstock_ledger.model import DeadLetter, Job
from penstock_ledger.reasons import By
from penstock_producer.reporting.advice import over_http
from penstock_producer.reporting.pauses import serialize_pause

__all__ = [
    "FORWARDED",
    "KNOWN",
    "OPERATOR",
    "STATE",
    "Caller",
    "Proxies",
    "Scope",
    "caller_with",
    "dead_letter_for",
    "error_for",
    "pause_for",
    "shown_source",
    "whose",
    "without_places",
]


HOPS_MAX: Final = 20  # proxies in a row; a longer header is not read any further
PREFIX_BITS: Final = 64  # of IPv6, what one customer of a network has at least
FORWARDED: Final = "x-forwarded-for"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

Scope = Literal["read", "write", "infer", "keys", "admin"]
STATE: Final = "penstock_caller"  # where the gate leaves the caller of a request
# where a connection leaves what the gate calls once it has found the caller
KNOWN: Final = "penstock_known"


class Proxies:
    """Those of the setting `gateway.trusted_proxies`."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def caller_of(self, connection: HTTPConnection) -> str:
        """Return the address that asks, as text; of IPv6 its network, which one caller may hold.

        It is the last trusted one where the header names nothing that is an address."""
        peer = connection.client.host if connection.client else ""
        return self.asked_by(peer, connection.headers.getlist(FORWARDED))

    def asked_by(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the same of a peer and the values of its header X-Forwarded-For."""
        found = _address(peer)
        if found is None:
            return peer
        if not self._trusts(found):
            return _counted(found)
        hops = ",".join(forwarded).split(",")
        for hop in reversed(hops[-HOPS_MAX:]):
            address = _address(hop)
            if address is None:
                break
            found = address
            if not self._trusts(address):
                break
        return _counted(found)

    def is_trusted(self, peer: str) -> bool:
        """Return whether this peer is one of the balancers."""
        found = _address(peer)
        return found is not None and self._trusts(found)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _counted(address: Address) -> str:
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address), PREFIX_BITS), strict=False))


def _address(text: str) -> Address | None:
    """Read `203.0.113.7`, `203.0.113.7:4711`, `2001:db8::1` or `[2001:db8::1]:4711`.

    One of IPv4 written as IPv6 is of IPv4."""
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request.

    Without a tenant it is the operator: by a key that has none, or on loopback while there are no
    keys."""

    tenant: str | None
    key_id: str | None
    scopes: frozenset[str]
    # where it has no tenant: the key whose requests count with its own
    counted_as: str | None = None

    @property
    def is_operator(self) -> bool:
        """By a key without a tenant, or with the scope `admin`."""
        return self.tenant is None or "admin" in self.scopes

    def may_see(self, tenant: str | None) -> bool:
        """Return whether what belongs to ``tenant`` is there for this caller."""
        return "admin" in self.scopes or self.tenant == tenant


OPERATOR: Final = Caller(None, None, frozenset(SCOPES))


def caller_with(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """Return the dependency of a route: ``Annotated[Caller, Depends(caller_with("read"))]``."""

    async def caller(request: Request) -> Caller:
        found = request.scope.get("state", {}).get(STATE)
        if not isinstance(found, Caller):  # the gate is shut for paths without one
            raise Refused(401, "You didn't provide an API key.", code="invalid_api_key")
        if scope not in found.scopes and "admin" not in found.scopes:
            raise Refused(
                403, f"This key may not do that: it has no scope {scope!r}.", code="missing_scope"
            )
        return found

    return caller


def whose(caller: Caller) -> Whose:
    """Return whose objects the caller sees: its tenant's, or all with the scope `admin`."""
    return Whose(caller.tenant, "admin" in caller.scopes)


def shown_source(job: Job) -> str:
    """Return where the job's documents are.

    Of an uploaded file that is the id, not where this machine keeps it.
    """
    uri = str(job.source.get("uri", ""))
    name = uri.rpartition("/")[2].partition(".")[0]
    return name if is_id("file", name) else uri


def error_for(job: Job, text: str | None) -> str:
    """Return a sentence about a job as its tenant may read it; "" where there is none."""
    return without_places(job, text or "")


def without_places(job: Job, text: str) -> str:
    """Return a sentence without places of this machine; all other words stay.

    Those may be of a provider, of a model or of the job's own documents."""
    uri, shown = str(job.source.get("uri", "")), shown_source(job)
    return text if uri == shown or not uri else text.replace(uri, shown)


def pause_for(job: Job) -> dict[str, Any] | None:
    """Return why a job is paused, and what to do about it, as its tenant may read it."""
    if job.pause is None:
        return None
    # what a provider or a person has said stays as it is
    ours = job.pause.by not in (By.PROVIDER, By.PERSON, By.STOP_LOSS)
    params = {
        name: (error_for if ours or name == "fix" else without_places)(job, value)
        if isinstance(value, str)
        else value
        for name, value in job.pause.params.items()
    }
    if isinstance(examples := params.get("examples"), list):
        params["examples"] = [
            {name: without_places(job, str(text)) for name, text in one.items()}
            for one in examples
            if isinstance(one, dict)
        ]
    pause = replace(job.pause, params=params)
    return serialize_pause(pause, lambda text: without_places(job, over_http(text)))


def dead_letter_for(job: Job, letter: DeadLetter) -> DeadLetter:
    """Return a dead letter whose last error its tenant may read."""
    return replace(letter, last_error=error_for(job, letter.last_error))

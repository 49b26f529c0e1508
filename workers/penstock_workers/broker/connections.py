"""How a channel reaches Redis: plain, over TLS, a unix socket or Sentinel; and the client of the
thread that keeps leases."""

from __future__ import annotations

from typing import Any

import redis
from kombu.transport import redis as kombu_redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import SentinelManagedConnection

from penstock_ledger import RedisAddress
from penstock_workers.broker.lease_scripts import Keys

KEEPER_TIMEOUT_MIN_S = 1.0


class ConnectingChannel(kombu_redis.Channel):  # type: ignore[misc]  # kombu is untyped
    """``connection`` is a ``Transport`` of ``transport.py``: it knows the address, None = kombu
    finds it out by itself."""

    connection: Any

    def broker_keys(self) -> Keys:
        prefix = self.global_keyprefix
        return Keys(
            unacked=prefix + self.unacked_key,
            unacked_index=prefix + self.unacked_index_key,
            visibility_timeout_s=float(self.visibility_timeout),
            prefix=prefix,
            steps=tuple(self.priority_steps),
        )

    @property
    def connection_class(self) -> type[Any]:
        """What kombu derives its own connections from; TLS and unix sockets it finds out by
        itself."""
        address: RedisAddress | None = self.connection.address
        if address is None or not address.sentinels:
            return (
                redis.SSLConnection
                if address is not None and address.over_tls
                else redis.Connection
            )
        return (
            kombu_redis.SentinelManagedSSLConnection
            if address.over_tls
            else SentinelManagedConnection
        )

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        parameters: dict[str, Any] = dict(super()._connparams(asynchronous))
        address = self.connection.address
        if address is None:
            return parameters
        for name in ("host", "port", "username", "password"):
            parameters.pop(name, None)
        return {**parameters, **address.parameters}

    def _get_pool(self, asynchronous: bool = False) -> Any:
        address = self.connection.address
        if address is None:
            return super()._get_pool(asynchronous)
        parameters = self._connparams(asynchronous)
        self.keyprefix_fanout: str = self.keyprefix_fanout.format(db=parameters["db"])
        return address.pool(parameters.pop("connection_class"), parameters)

    def _connect_keeper(self) -> redis.Redis:
        """A client for the lease keeper: it must notice a dead peer well before a lease ends."""
        parameters = self._connparams()
        patience_s = max(KEEPER_TIMEOUT_MIN_S, float(self.visibility_timeout) / 6)
        parameters["socket_timeout"] = min(
            parameters.get("socket_timeout") or patience_s, patience_s
        )
        parameters["retry"] = Retry(NoBackoff(), 0)  # the keeper has retries of its own
        address = self.connection.address
        if address is None:
            return redis.Redis(connection_pool=redis.ConnectionPool(**parameters))
        return redis.Redis(
            connection_pool=address.pool(parameters.pop("connection_class"), parameters)
        )

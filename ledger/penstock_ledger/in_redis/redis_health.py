"""Whether a Redis is fit to be worked with, and whether it still is the one that was set up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import redis

from penstock_ledger.errors import RedisUnfit
from penstock_ledger.in_redis.batches import Memory

log = logging.getLogger(__name__)

MIN_VERSION: Final = (
    6,
    2,
)  # RPOP and LPOP with a count, GETEX, and scripts that may read the clock before they write


def memory(client: redis.Redis) -> Memory:
    info = _info(client, "memory")
    return Memory(
        int(info["used_memory"]),
        int(info.get("maxmemory", 0)),
        str(info.get("maxmemory_policy", "noeviction")),
    )


def run_id(client: redis.Redis) -> str:
    """Names one life of a server process: another one after every restart and every failover."""
    return str(_info(client, "server")["run_id"])


def check(client: redis.Redis) -> None:
    """Raises RedisUnfit with the fix. Only INFO is asked: managed services often forbid CONFIG.

    A value that the server does not report is a warning: only its operator can know it.
    """
    server = _info(client, "server")
    version = tuple(int(part) for part in str(server["redis_version"]).split(".")[:2])
    if version < MIN_VERSION:
        wanted = ".".join(map(str, MIN_VERSION))
        raise RedisUnfit(
            f"redis_version is {server['redis_version']}; use Redis {wanted} or newer, or Valkey"
        )
    if is_cluster(server):
        raise RedisUnfit(
            "redis_mode is cluster: one step touches keys of several slots; use one Redis with "
            "replicas"
        )
    memory_info = _info(client, "memory")
    if "maxmemory_policy" not in memory_info:
        log.warning(
            "Redis does not report its maxmemory-policy: make sure that it is noeviction, or a "
            "full one drops queued work"
        )
    elif int(memory_info.get("maxmemory", 0)) and memory_info["maxmemory_policy"] != "noeviction":
        raise RedisUnfit(
            f"maxmemory-policy is {memory_info['maxmemory_policy']}: a full Redis would drop "
            "queued work in silence; set it to noeviction (CONFIG SET maxmemory-policy noeviction, "
            "and in redis.conf or the service's parameter group)"
        )


def is_cluster(server: Mapping[str, Any]) -> bool:
    """Whether the INFO of a server says that it is one of a cluster.

    Valkey calls the field by another name."""
    return "cluster" in (server.get("server_mode"), server.get("redis_mode"))


def _info(client: redis.Redis, section: str) -> dict[str, Any]:
    info: Any = client.info(section)  # redis-py types the sync and async client as one
    return dict(info)

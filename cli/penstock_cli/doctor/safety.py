"""`penstock doctor` looks at who can reach, read or break into the stores.

Where only this machine's users reach a server, most of that does not matter. In a private network
TLS is advised; across public addresses it is insisted on.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from penstock_cli.doctor.worker import REDIS_TIMEOUT_S, Finding, Verdict
from penstock_cli.server_versions import Software, of_postgresql, of_redis

if TYPE_CHECKING:
    from penstock_ledger import Database, RedisAddress

BACKPORTS = (
    "a distribution that backports fixes keeps the old number: compare its changelog, then pass "
    "--accept"
)
REDIS_FIXES = (
    ("WRONGPASS", "correct user and password in redis_url (PENSTOCK_REDIS_URL), %-encoded"),
    (
        "invalid username-password",
        "correct user and password in redis_url (PENSTOCK_REDIS_URL), %-encoded",
    ),
    (
        "AUTH",
        "redis_url has no password, and this Redis asks for one: redis://user:password@host:6379/0",
    ),
    ("NOPERM", "give this user what docs/security.md lists: ACL SETUSER …"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "name the CA that signed its certificate: rediss://…?ssl_ca_certs=/ca.pem",
    ),
)
DATABASE_FIXES = (
    (
        "password authentication failed",
        "correct user and password in database_url (PENSTOCK_DATABASE_URL), %-encoded",
    ),
    (
        "no password supplied",
        "write the password into database_url: postgresql://user:password@host/name",
    ),
    ('role "', "create the role (createuser --pwprompt NAME), or correct the user in database_url"),
    (
        'database "',
        "create it (createdb -O USER NAME), or correct the name at the end of database_url",
    ),
    (
        "no pg_hba.conf entry",
        "let this user in from here: a line in pg_hba.conf; it may ask for sslmode=require",
    ),
    (
        "permission denied for schema",
        "GRANT USAGE, CREATE ON SCHEMA public TO the user of database_url",
    ),
    (
        "permission denied",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO the user of "
        "database_url",
    ),
    (
        "certificate verify failed",
        "name the CA that signed its certificate: ?sslmode=verify-full&sslrootcert=/ca.pem",
    ),
    (
        "does not support SSL",
        "switch ssl on in postgresql.conf; use sslmode=disable only on a network that is yours "
        "alone",
    ),
    ("could not translate host name", "correct the host in database_url"),
    ("failed to resolve host", "correct the host in database_url"),
    (
        "unable to open database file",
        "let this user write the file and its folder, or name another in database_url",
    ),
    ("readonly database", "let this user write the file and its folder"),
)


class Reach(IntEnum):
    """From where a server can be reached, by its address."""

    HERE = 0
    PRIVATE = 1
    PUBLIC = 2


def reach_of(host: str) -> Reach:
    """Return who can reach a host name or address.

    A name that does not resolve is taken for one of a private network."""
    if not host or host.startswith("/") or host == "localhost":
        return Reach.HERE
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return Reach.PRIVATE
    return max((_reach_of_address(address) for address in found), default=Reach.PRIVATE)


def _reach_of_address(address: str) -> Reach:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.is_loopback:
        return Reach.HERE
    return Reach.PUBLIC if parsed.is_global else Reach.PRIVATE


def fix_for(said: str, fixes: tuple[tuple[str, str], ...], otherwise: str) -> str:
    """Return what to do about a server's refusal, by the words that it uses."""
    return next((fix for sign, fix in fixes if sign in said), otherwise)


def database_fix(said: str) -> str:
    """Return the fix for what the database said.

    PostgreSQL says `does not exist` both of roles and of databases.
    """
    if "does not exist" not in said:
        fixes = tuple(entry for entry in DATABASE_FIXES if entry[0] not in ('role "', 'database "'))
        return fix_for(said, fixes, "check that it runs and is reachable")
    return fix_for(said, DATABASE_FIXES, "check that it runs and is reachable")


def redis_safety(address: RedisAddress, info: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is unsafe about Redis: holes of its version, no password, no TLS."""
    hosts = [host for host, _ in address.sentinels] or [str(address.parameters.get("host", ""))]
    reach = max(map(reach_of, hosts))
    yield patched("version", of_redis(info), reach)
    password = address.parameters.get("password")
    if reach is Reach.HERE:
        return
    if not password or _lets_anybody_in(address):
        seen = (
            "it asks for no password: anyone who reaches it can read documents, and forge and "
            "cancel work"
        )
        yield Finding(
            Verdict.BAD,
            "access",
            seen,
            "requirepass, or ACL users as in docs/security.md; then in redis_url",
        )
    if not address.over_tls:
        yield _in_clear(
            "redis_url", "rediss:// (or sentinels://) with ?ssl_ca_certs=/ca.pem", reach
        )
    elif str(address.parameters.get("ssl_cert_reqs", "required")) == "none":
        yield _unchecked("ssl_cert_reqs=none", "leave it out, and name the CA with ssl_ca_certs")


def _lets_anybody_in(address: RedisAddress) -> bool:
    """Return whether the server answers one who gives no password at all, though we have one."""
    import redis

    if address.sentinels:
        return False
    parameters = {
        name: value
        for name, value in address.parameters.items()
        if name not in ("username", "password")
    }
    client = redis.Redis(
        **parameters,
        ssl=address.over_tls,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
    )
    try:
        client.ping()
    except (redis.RedisError, OSError, TypeError):
        return False
    finally:
        client.close()
    return True


def postgres_safety(database: Database) -> Iterator[Finding]:
    """Yield what is unsafe about PostgreSQL; nothing for SQLite.

    That is holes of its version, no TLS, and a server's certificate that is not looked at.
    """
    if database.is_sqlite:
        return
    url = database.engine.url
    reach = reach_of(str(url.query.get("host", url.host or "")))
    with database.engine.connect() as connection:
        number = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())
        encrypted = bool(
            connection.exec_driver_sql(
                "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            ).scalar()
        )
    yield patched("postgresql", of_postgresql(number), reach)
    if reach is Reach.HERE:
        return
    mode = str(url.query.get("sslmode", "prefer"))
    if not encrypted:
        yield _in_clear("database_url", "?sslmode=verify-full&sslrootcert=/ca.pem", reach)
    elif mode != "verify-full":
        yield _unchecked(
            f"sslmode={mode}", "sslmode=verify-full&sslrootcert=/ca.pem in database_url"
        )


def amqp_safety(url: str) -> Iterator[Finding]:
    """Yield what is unsafe about RabbitMQ: no TLS, and its own example of a user."""
    from urllib.parse import urlsplit

    nodes = [urlsplit(node) for node in url.split(";")]
    reach = max(reach_of(node.hostname or "") for node in nodes)
    if reach is Reach.HERE:
        return
    for node in nodes:
        if (node.username, node.password) == ("guest", "guest"):
            yield Finding(
                Verdict.BAD,
                "rabbitmq",
                "guest:guest is RabbitMQ's published default",
                "rabbitmqctl add_user NAME, and delete_user guest",
            )
    if nodes[0].scheme != "amqps":
        yield _in_clear("broker_url", "amqps://…?ssl_ca_certs=/ca.pem", reach)


def patched(subject: str, software: Software, reach: Reach) -> Finding:
    """Return whether no hole is known of this version; on this machine an old one is a warning."""
    if software.is_patched(private=reach is Reach.HERE):
        return Finding(Verdict.GOOD, subject, f"{software} has the known security fixes")
    verdict = Verdict.WARNING if reach is Reach.HERE else Verdict.BAD
    seen = f"{software} has known security holes"
    return Finding(
        verdict,
        subject,
        seen,
        f"upgrade {software.product} to {software.wanted()} or newer; {BACKPORTS} {subject}",
    )


def _in_clear(setting: str, fix: str, reach: Reach) -> Finding:
    verdict = Verdict.BAD if reach is Reach.PUBLIC else Verdict.WARNING
    where = "public addresses" if reach is Reach.PUBLIC else "a private network"
    return Finding(
        verdict,
        "tls",
        f"{setting} crosses {where} without TLS: passwords and documents can be read there",
        fix,
    )


def _unchecked(option: str, fix: str) -> Finding:
    return Finding(
        Verdict.WARNING, "tls", f"{option}: the server's certificate is not checked", fix
    )

"""From settings and Flower's own variables to Flower's options, and the refusal of those that would
let strangers in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from tornado.options import Error, OptionParser

from penstock_cli.errors import UsageProblem
from penstock_cli.flower.settings import FlowerSettings

MAX_TASKS = (
    20_000  # kept in memory, the oldest go first: 226 to 283 MiB in all, where it was measured
)
MAX_WORKERS = 1_000
PURGE_OFFLINE_S = 600  # spot nodes come and go under new names
INSPECT_TIMEOUT_MS = 2_000.0
DEFAULTS: Mapping[str, Any] = {
    "address": "127.0.0.1",
    "port": 5555,
    "max_tasks": MAX_TASKS,
    "max_workers": MAX_WORKERS,
    "purge_offline_workers": PURGE_OFFLINE_S,
    "inspect_timeout": INSPECT_TIMEOUT_MS,
    "tasks_columns": "uuid,state,retries,received,runtime,worker,exception",
    "read_only": True,
    "persistent": False,
    "enable_events": True,
}
PREFIX = "FLOWER_"
_SERVICE_LINK = "tcp://"  # Kubernetes sets FLOWER_PORT=tcp://… beside a Service `flower`


def fill(options: OptionParser, settings: FlowerSettings, variables: Mapping[str, str]) -> None:
    """Set Flower's options: settings win over its variables, those over ``DEFAULTS``.

    Raises UsageProblem."""
    for name, value in DEFAULTS.items():
        setattr(options, name, value)
    for variable, text in variables.items():
        name = variable.removeprefix(PREFIX).lower()
        if name in options and not text.startswith(_SERVICE_LINK):
            _parse(options, variable, name, text)
    for name, value in settings.model_dump(exclude_none=True).items():
        if name != "auth":
            setattr(options, name, value)
    if settings.auth is not None:
        options.basic_auth = settings.auth.get_secret_value().split(",")
    options.url_prefix = (options.url_prefix or "").strip("/") or None
    _check_logins(options.basic_auth or ())
    _check_door(options)


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _parse(options: OptionParser, variable: str, name: str, text: str) -> None:
    try:
        options.parse_command_line(["flower", f"--{name}={text}"], final=False)
    except (Error, ValueError):
        kind = type(DEFAULTS.get(name, "")).__name__
        raise UsageProblem(
            f"{variable} is not usable: Flower's option {name} wants {kind}"
        ) from None


def _check_logins(logins: Iterable[str]) -> None:
    """Flower would accept a login without a colon, and then refuse every user.

    No password is shown."""
    for number, login in enumerate(logins, start=1):
        user, colon, password = login.partition(":")
        if not (user and colon and password and login.isascii()):
            raise UsageProblem(
                f"login {number} of PENSTOCK_FLOWER__AUTH (or FLOWER_BASIC_AUTH) is not "
                "`user:password` in ASCII; commas stand between logins, so no password may hold "
                "one"
            )


def _check_door(options: OptionParser) -> None:
    if options.basic_auth or options.auth or options.unix_socket or is_loopback(options.address):
        return
    raise UsageProblem(
        f"Flower would listen on {options.address or 'every address'} without a login, and show "
        "jobs to anyone who reaches it; set PENSTOCK_FLOWER__AUTH=user:password (or "
        "FLOWER_BASIC_AUTH), or keep the address 127.0.0.1"
    )

"""The only place of this package that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

DEBUG_VARIABLE = "PENSTOCK_DEBUG"
SETTINGS_PREFIX = "PENSTOCK_"
KEY_VARIABLES = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
}
REDIS_SERVER_VARIABLE = "PENSTOCK_REDIS_SERVER"
PARENT_PID_VARIABLE = "PENSTOCK_PARENT_PID"  # set by the supervisor, for its own children only


def debug() -> bool:
    """Return whether errors come with their traceback."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def parent_pid() -> int | None:
    """Return the `penstock run` that started this worker, if one did."""
    text = os.environ.get(PARENT_PID_VARIABLE, "")
    return int(text) if text.isdigit() else None


def chosen_redis_server() -> str | None:
    """Return the server program that `penstock run` shall start.

    None = the first patched one that is found."""
    return os.environ.get(REDIS_SERVER_VARIABLE) or None


def variable_is_set(name: str) -> bool:
    return bool(os.environ.get(name))


def first_set(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the first of these variables that is set, if only to nothing."""
    return next(((name, os.environ[name]) for name in names if name in os.environ), None)


def names_that_count() -> list[str]:
    """Return the names of variables that are set and that Penstock or its libraries read."""
    return sorted(
        name
        for name in os.environ
        if name.startswith((SETTINGS_PREFIX, "AWS_", "CELERY_", "FLOWER_", "OTEL_"))
        or name in (*KEY_VARIABLES.values(), "MALLOC_ARENA_MAX", "SSL_CERT_FILE", "TMPDIR")
        or name.upper().endswith("_PROXY")
    )


def own_environment() -> dict[str, str]:
    """Return all variables, settings included, for a process that reads them as this one did."""
    return dict(os.environ)


def flower_variables() -> dict[str, str]:
    """Return Flower's own variables, as its documentation names them."""
    return {name: value for name, value in os.environ.items() if name.startswith("FLOWER_")}


def adopt_settings(settings: Mapping[str, str]) -> None:
    """Set exactly these Penstock settings, for a worker started before they were known."""
    for name in [name for name in os.environ if name.startswith(SETTINGS_PREFIX)]:
        del os.environ[name]
    os.environ.update(settings)


def child_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with exactly these Penstock settings.

    What the parent has merged must not merge again."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(SETTINGS_PREFIX)
    }
    return {**kept, **settings}

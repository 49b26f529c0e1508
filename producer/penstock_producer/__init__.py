"""Accept work: job specs, sources, validation, the wire message and the feeder.

The names below are the public ones. They load on first use, so that importing the package costs a service nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_producer.errors import ProducerError, SettingsError, SourceError, SpecError, TooManyBadRows
    from penstock_producer.open_job import OpenJob
    from penstock_producer.producer import JobStatus, Producer
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.spec import JobSpec

__all__ = [
    "JobSpec",
    "JobStatus",
    "OpenJob",
    "Producer",
    "ProducerError",
    "ProducerSettings",
    "SettingsError",
    "SourceError",
    "SpecError",
    "TooManyBadRows",
]

_HOMES = {
    "JobSpec": "spec",
    "JobStatus": "producer",
    "OpenJob": "open_job",
    "Producer": "producer",
    "ProducerError": "errors",
    "ProducerSettings": "settings",
    "SettingsError": "errors",
    "SourceError": "errors",
    "SpecError": "errors",
    "TooManyBadRows": "errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)

"""Accept work: job specs, sources, validation, the wire message and the feeder.

The names below are the public ones: the doors, the values that they return, and everything that they raise
(`PenstockError` is the root). They load on first use, so that importing the package costs a service nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_ledger.errors import (
        DatabaseUnavailable,
        DatabaseUnusable,
        JobClosed,
        JobConflict,
        JobError,
        JobNotFound,
        JobNotReplayable,
        LedgerError,
        NothingToReplay,
        PenstockError,
        SchemaError,
        SchemaMissing,
        SchemaTooNew,
        SpoolConflict,
    )
    from penstock_ledger.model import Counts, DeadLetter, ItemKey, Job, JobState, Result
    from penstock_producer.async_producer import AsyncOpenJob, AsyncProducer
    from penstock_producer.errors import (
        InvalidDocument,
        JobCancelled,
        Problem,
        ProducerError,
        SettingsError,
        SinkError,
        SourceChanged,
        SourceError,
        SourceForbidden,
        SourceUnavailable,
        SpecError,
        TemplateError,
        TooManyBadRows,
    )
    from penstock_producer.open_job import OpenJob
    from penstock_producer.producer import JobStatus, Producer
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.spec import JobSpec

__all__ = [
    "AsyncOpenJob",
    "AsyncProducer",
    "Counts",
    "DatabaseUnavailable",
    "DatabaseUnusable",
    "DeadLetter",
    "InvalidDocument",
    "ItemKey",
    "Job",
    "JobCancelled",
    "JobClosed",
    "JobConflict",
    "JobError",
    "JobNotFound",
    "JobNotReplayable",
    "JobSpec",
    "JobState",
    "JobStatus",
    "LedgerError",
    "NothingToReplay",
    "OpenJob",
    "PenstockError",
    "Problem",
    "Producer",
    "ProducerError",
    "ProducerSettings",
    "Result",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SettingsError",
    "SinkError",
    "SourceChanged",
    "SourceError",
    "SourceForbidden",
    "SourceUnavailable",
    "SpecError",
    "SpoolConflict",
    "TemplateError",
    "TooManyBadRows",
]

_HOMES = {
    "AsyncOpenJob": "penstock_producer.async_producer",
    "AsyncProducer": "penstock_producer.async_producer",
    "Counts": "penstock_ledger.model",
    "DatabaseUnavailable": "penstock_ledger.errors",
    "DatabaseUnusable": "penstock_ledger.errors",
    "DeadLetter": "penstock_ledger.model",
    "InvalidDocument": "penstock_producer.errors",
    "ItemKey": "penstock_ledger.model",
    "Job": "penstock_ledger.model",
    "JobCancelled": "penstock_producer.errors",
    "JobClosed": "penstock_ledger.errors",
    "JobConflict": "penstock_ledger.errors",
    "JobError": "penstock_ledger.errors",
    "JobNotFound": "penstock_ledger.errors",
    "JobNotReplayable": "penstock_ledger.errors",
    "JobSpec": "penstock_producer.spec",
    "JobState": "penstock_ledger.model",
    "JobStatus": "penstock_producer.producer",
    "LedgerError": "penstock_ledger.errors",
    "NothingToReplay": "penstock_ledger.errors",
    "OpenJob": "penstock_producer.open_job",
    "PenstockError": "penstock_ledger.errors",
    "Problem": "penstock_producer.errors",
    "Producer": "penstock_producer.producer",
    "ProducerError": "penstock_producer.errors",
    "ProducerSettings": "penstock_producer.settings",
    "Result": "penstock_ledger.model",
    "SchemaError": "penstock_ledger.errors",
    "SchemaMissing": "penstock_ledger.errors",
    "SchemaTooNew": "penstock_ledger.errors",
    "SettingsError": "penstock_producer.errors",
    "SinkError": "penstock_producer.errors",
    "SourceChanged": "penstock_producer.errors",
    "SourceError": "penstock_producer.errors",
    "SourceForbidden": "penstock_producer.errors",
    "SourceUnavailable": "penstock_producer.errors",
    "SpecError": "penstock_producer.errors",
    "SpoolConflict": "penstock_ledger.errors",
    "TemplateError": "penstock_producer.errors",
    "TooManyBadRows": "penstock_producer.errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """What completion in a shell or an editor offers: names that nothing has asked for yet, too."""
    return sorted(__all__)

"""Accept work: job specs, sources, validation, the wire message and the feeder.

The names below are the public ones: the doors, the values that they return, and everything that
they raise (`PenstockError` is the root). They load on first use, so that importing the package
costs a service nothing. Other packages of this distribution may also import what `INTERNAL_SURFACE`
in tests/contract/test_boundaries.py lists, from each module what its `__all__` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_ledger.lazy_names import lazy_names

if TYPE_CHECKING:
    __all__: list[str]
    from penstock_ledger import MadeWith as MadeWith
    from penstock_ledger.errors import DatabaseUnavailable as DatabaseUnavailable
    from penstock_ledger.errors import DatabaseUnusable as DatabaseUnusable
    from penstock_ledger.errors import JobClosed as JobClosed
    from penstock_ledger.errors import JobConflict as JobConflict
    from penstock_ledger.errors import JobError as JobError
    from penstock_ledger.errors import JobNotFound as JobNotFound
    from penstock_ledger.errors import JobNotReplayable as JobNotReplayable
    from penstock_ledger.errors import LedgerError as LedgerError
    from penstock_ledger.errors import NothingToReplay as NothingToReplay
    from penstock_ledger.errors import OutcomesHeldBack as OutcomesHeldBack
    from penstock_ledger.errors import PenstockError as PenstockError
    from penstock_ledger.errors import PlaceLost as PlaceLost
    from penstock_ledger.errors import ScheduleExists as ScheduleExists
    from penstock_ledger.errors import ScheduleNotFound as ScheduleNotFound
    from penstock_ledger.errors import SchemaError as SchemaError
    from penstock_ledger.errors import SchemaMissing as SchemaMissing
    from penstock_ledger.errors import SchemaTooNew as SchemaTooNew
    from penstock_ledger.errors import SpoolConflict as SpoolConflict
    from penstock_ledger.errors import TablesInUse as TablesInUse
    from penstock_ledger.errors import TooManySchedules as TooManySchedules
    from penstock_ledger.model import Counts as Counts
    from penstock_ledger.model import DeadLetter as DeadLetter
    from penstock_ledger.model import ItemKey as ItemKey
    from penstock_ledger.model import Job as Job
    from penstock_ledger.model import JobState as JobState
    from penstock_ledger.model import Result as Result
    from penstock_ledger.schedules.model import CatchUp as CatchUp
    from penstock_ledger.schedules.model import Firing as Firing
    from penstock_ledger.schedules.model import Schedule as Schedule
    from penstock_producer.accepting.sampling import Preview as Preview
    from penstock_producer.async_producer import AsyncOpenJob as AsyncOpenJob
    from penstock_producer.async_producer import AsyncProducer as AsyncProducer
    from penstock_producer.errors import ContentError as ContentError
    from penstock_producer.errors import InvalidDocument as InvalidDocument
    from penstock_producer.errors import JobCancelled as JobCancelled
    from penstock_producer.errors import JobRefused as JobRefused
    from penstock_producer.errors import Problem as Problem
    from penstock_producer.errors import ProducerError as ProducerError
    from penstock_producer.errors import Refusal as Refusal
    from penstock_producer.errors import ScheduleError as ScheduleError
    from penstock_producer.errors import SettingsError as SettingsError
    from penstock_producer.errors import SinkError as SinkError
    from penstock_producer.errors import SinkTaken as SinkTaken
    from penstock_producer.errors import SinkUnfit as SinkUnfit
    from penstock_producer.errors import SourceChanged as SourceChanged
    from penstock_producer.errors import SourceError as SourceError
    from penstock_producer.errors import SourceForbidden as SourceForbidden
    from penstock_producer.errors import SourceUnavailable as SourceUnavailable
    from penstock_producer.errors import SpecError as SpecError
    from penstock_producer.errors import TemplateError as TemplateError
    from penstock_producer.errors import TooManyBadRows as TooManyBadRows
    from penstock_producer.job.spec import JobSpec as JobSpec
    from penstock_producer.jobfile import JobFile as JobFile
    from penstock_producer.open_job import LineFate as LineFate
    from penstock_producer.open_job import OpenJob as OpenJob
    from penstock_producer.open_job import PushedLine as PushedLine
    from penstock_producer.producer import JobStatus as JobStatus
    from penstock_producer.producer import Producer as Producer
    from penstock_producer.schedules.api import Schedules as Schedules
    from penstock_producer.schedules.timetable import OutcomesOf as OutcomesOf
    from penstock_producer.settings import ProducerSettings as ProducerSettings
    from penstock_producer.tables.reading import Committed as Committed
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock_ledger": "MadeWith",
            "penstock_ledger.errors": (
                "DatabaseUnavailable DatabaseUnusable JobClosed JobConflict JobError JobNotFound "
                "JobNotReplayable LedgerError NothingToReplay OutcomesHeldBack PenstockError "
                "PlaceLost ScheduleExists ScheduleNotFound SchemaError SchemaMissing SchemaTooNew "
                "SpoolConflict TablesInUse TooManySchedules"
            ),
            "penstock_ledger.model": "Counts DeadLetter ItemKey Job JobState Result",
            "penstock_ledger.schedules.model": "CatchUp Firing Schedule",
            "penstock_producer.accepting.sampling": "Preview",
            "penstock_producer.async_producer": "AsyncOpenJob AsyncProducer",
            "penstock_producer.tables.reading": "Committed",
            "penstock_producer.errors": (
                "ContentError InvalidDocument JobCancelled JobRefused Problem ProducerError "
                "Refusal ScheduleError SettingsError SinkError SinkTaken SinkUnfit SourceChanged "
                "SourceError SourceForbidden SourceUnavailable SpecError TemplateError "
                "TooManyBadRows"
            ),
            "penstock_producer.jobfile": "JobFile",
            "penstock_producer.open_job": "LineFate OpenJob PushedLine",
            "penstock_producer.producer": "JobStatus Producer",
            "penstock_producer.schedules.api": "Schedules",
            "penstock_producer.schedules.timetable": "OutcomesOf",
            "penstock_producer.settings": "ProducerSettings",
            "penstock_producer.job.spec": "JobSpec",
        },
    )

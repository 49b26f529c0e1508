"""Celery tasks for services that use Penstock through a plain Celery client.

docs/doors.md is their page. Their arguments come from outside: they are checked against the
operator's limits (`source_roots`, `hook_modules`, `doors.*`). Each start is counted, so a task ends
by itself, by its time limit, or parked after it has crashed several processes. A refusal goes to
the client (the task's result and its `task-failed` event) and is kept for the operator (`penstock
refused`), in both places without any content of documents.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from celery import Task
from celery.exceptions import Reject
from redis.exceptions import RedisError

from penstock_ledger import DatabaseUnavailable, PenstockError, RedisAddress
from penstock_producer import Producer
from penstock_producer.accepting.remote_limits import RemoteLimits
from penstock_producer.errors import ProducerError
from penstock_workers.celery_app.door_records import TaskRecords
from penstock_workers.errors import DoorRefused
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

SUBMIT, OPEN, ENQUEUE, CLOSE = (
    "penstock.submit",
    "penstock.open_job",
    "penstock.enqueue",
    "penstock.close_job",
)
# Of a task's arguments as JSON text. Prompts and documents of some megabytes fit; larger ones
# belong into a source.
MAX_TASK_BYTES = 8 * 1024 * 1024
GRACE_S = 60.0  # beyond the task's own time limit; then the worker gives it up
DATABASE_PAUSE_S = 2.0  # between two tries of a task that the database does not answer
REDIS_TIMEOUT_S = 5.0


class Door:
    """The parts that the door tasks of a process share, opened on first use.

    It is a producer with the operator's limits, and the records."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._records: TaskRecords | None = None

    @property
    def producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                remote_limits = RemoteLimits(self.settings.doors, self.settings.hook_modules)
                self._producer = Producer(self.settings, remote_limits=remote_limits)
            return self._producer

    @property
    def records(self) -> TaskRecords:
        with self._lock:
            if self._records is None:
                address = RedisAddress.parse(self.settings.redis_url)
                self._records = TaskRecords(
                    address.connect(
                        socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
                    )
                )
            return self._records


class DoorTask(Task):  # type: ignore[misc]  # Celery is untyped
    """A door task. Subclasses implement ``serve``."""

    Request = "penstock_workers.celery_app.requests:DoorRequest"
    acks_late = True  # a worker that dies while it reads a source leaves the task to another
    ignore_result = False  # kept where `result_backend_url` says; not kept without one
    typing = False  # arguments are checked below, where a mistake gets an answer
    throws = (DoorRefused,)  # no traceback in the log for a refusal

    usage: ClassVar[str]

    def __init__(self, door: Door) -> None:
        self.door = door
        self.time_limit = door.settings.doors.submit_timeout_s + GRACE_S

    def serve(self, producer: Producer, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Return what ``serve`` returns.

        Raises DoorRefused, which is recorded, and Reject for a task that is parked."""
        given = self._given(args, kwargs)
        with self._counted(given):
            refusal = self._attend(given)
        if isinstance(refusal, _Served):
            return refusal.value
        self.remember(given, refusal)
        raise DoorRefused(refusal)

    def _attend(self, given: Mapping[str, Any] | str) -> _Served | str:
        """Turn errors into text here.

        Their chain is left out, since its messages could quote a document."""
        if isinstance(given, str):
            return given
        gives_up_at = time.monotonic() + self.door.settings.doors.submit_timeout_s
        while True:
            try:
                return _Served(self.serve(self.door.producer, **given))
            except DatabaseUnavailable as error:
                if time.monotonic() >= gives_up_at:
                    return (
                        "the database could not be reached for "
                        f"{self.door.settings.doors.submit_timeout_s:g} s"
                    )
                log.warning("%s %s waits: %s", self.name, self.request.id, error)
                time.sleep(DATABASE_PAUSE_S)
            except PenstockError as error:
                return str(error.public_message)
            except Exception as error:
                where = inspect.trace()[-1]
                log.error(
                    "%s: %s at %s:%d", self.name, type(error).__name__, where.filename, where.lineno
                )
                return f"an unexpected {type(error).__name__}; the log of the worker says where"

    @contextlib.contextmanager
    def _counted(self, given: Mapping[str, Any] | str) -> Iterator[None]:
        """Count the start in Redis before the task is read, because it may crash this process."""
        task_id = str(self.request.id)
        try:
            crashes = self.door.records.begin(task_id)
        except RedisError as error:
            raise Reject(f"Redis does not answer ({type(error).__name__})", requeue=True) from None
        most = self.door.settings.doors.max_crashes
        if crashes >= most:
            reason = (
                f"the process that worked on it has died {crashes} times (the setting "
                f"doors.max_crashes is {most})"
            )
            self.remember(given, reason, parked=True)
            self.given_back(task_id)
            raise Reject(reason, requeue=False)
        yield
        self.given_back(task_id)

    def given_back(self, task_id: str) -> None:
        """Note that the task ended, or returns to its queue because this process has to end.

        No crash is counted then."""
        with contextlib.suppress(RedisError):
            self.door.records.end(task_id)

    def overdue(self, task_id: str, given: Any) -> None:
        """Record that the worker gave the task up.

        Its thread may go on, which does no more harm than sending the task again."""
        self.given_back(task_id)
        self.remember(
            given, f"it did not end within {self.time_limit:g} s and was given up", task_id=task_id
        )

    def remember(
        self, given: Any, reason: str, *, parked: bool = False, task_id: str | None = None
    ) -> None:
        job = given.get("job_key") or given.get("job") if isinstance(given, Mapping) else None
        named = task_id or str(self.request.id)
        log.warning("%s %s is refused: %s", self.name, named, reason)
        with contextlib.suppress(RedisError):  # the client gets the refusal in any case
            self.door.records.refuse(str(self.name), named, job, reason, parked=parked)

    def _given(self, args: Any, kwargs: Any) -> Mapping[str, Any] | str:
        """Return the arguments by their names, or what is wrong with them."""
        try:
            bound = inspect.signature(self.serve).bind(None, *args, **kwargs)
        except TypeError as error:
            return f"{error}; send {self.usage}"
        return {name: value for name, value in bound.arguments.items() if name != "producer"}


class _Served:
    """The result of a task, distinct from the text of a refusal."""

    def __init__(self, value: Any) -> None:
        self.value = value


class SubmitTask(DoorTask):
    """Accept a source as a job. Sending it twice with the same ``job_key`` is one job."""

    name = SUBMIT
    usage = "args=[source, spec], kwargs={'job_key': …}"

    def serve(
        self, producer: Producer, source: str, spec: Mapping[str, Any], job_key: str | None = None
    ) -> str:
        """Submit a job and return its id."""
        timeout_s = self.door.settings.doors.submit_timeout_s
        return producer.submit(
            source, spec, job_key=job_key or self.request.id, timeout_s=timeout_s
        ).job_id


class OpenTask(DoorTask):
    """Open a job that documents are pushed into.

    Sending it twice with the same ``job_key`` opens the same job."""

    name = OPEN
    usage = "args=[spec], kwargs={'job_key': …}"

    def serve(self, producer: Producer, spec: Mapping[str, Any], job_key: str | None = None) -> str:
        """Open a job and return its id."""
        return producer.open_job(spec, job_key=job_key or self.request.id).job_id


class EnqueueTask(DoorTask):
    """Push one document into an open job. Sending the same one again changes nothing."""

    name = ENQUEUE
    usage = "args=[job_key, doc_id, document]"

    def serve(
        self, producer: Producer, job: str, doc_id: str | int, document: Mapping[str, Any]
    ) -> bool:
        """Push a document and return whether it is new."""
        _check_may_push(producer, job, self.door.settings.doors.push_into)
        return producer.push(job, doc_id, document)


class CloseTask(DoorTask):
    """Say that an open job gets no more documents."""

    name = CLOSE
    usage = "args=[job_key]"

    def serve(self, producer: Producer, job: str) -> int:
        """Seal a job and return how many documents it has."""
        _check_may_push(producer, job, self.door.settings.doors.push_into)
        return producer.seal(job)


def _check_may_push(producer: Producer, job: str, push_into: str) -> None:
    """Check that clients may push into a job, whose tenant pays for their documents.

    Raises SpecError for one that clients may not name, and ProducerError."""
    producer.check_tenant(job)
    if push_into == "remote" and not producer.came_from_remote(job):
        raise ProducerError(
            f"job {str(job)[:200]!r} was opened by a service with access to the database, and the "
            "setting doors.push_into is remote: open a job of your own with penstock.open_job, or "
            "have the operator set it to any"
        )


def door_tasks(settings: WorkerSettings) -> Iterator[DoorTask]:
    """Yield all doors of a process."""
    door = Door(settings)
    kinds: tuple[Callable[[Door], DoorTask], ...] = (SubmitTask, OpenTask, EnqueueTask, CloseTask)
    for kind in kinds:
        yield kind(door)

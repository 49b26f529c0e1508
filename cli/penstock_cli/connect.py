"""The ledger that a command works on: the configured servers, or the state folder of a local run.

SQL is always there. Redis is asked for only by what needs it, because most commands do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.errors import RedisNotRunning, UsageProblem
from penstock_cli.redis_server import EmbeddedRedis
from penstock_cli.state import StateFolder

if TYPE_CHECKING:
    import redis

    from penstock_ledger import (
        Account,
        BatchSum,
        Database,
        JobStore,
        LaneMove,
        MadeWith,
        Meta,
        OutcomeStore,
        RedisLedger,
    )
    from penstock_ledger.model import Job
    from penstock_producer.operations import JobOperations
    from penstock_producer.settings import ProducerSettings
    from penstock_ratelimit.for_penstock import QuotaView


class Books:
    """Stores over one database, and Redis when it runs."""

    def __init__(
        self, database: Database, redis_url: str | None, state: StateFolder | None
    ) -> None:
        from penstock_ledger import JobStore, Meta, OutcomeStore

        self.database = database
        self.state = state
        self.redis_url = redis_url
        self.redis_client: redis.Redis | None = None  # set once ``redis`` was asked for
        self.jobs: JobStore = JobStore(database)
        self.outcomes: OutcomeStore = OutcomeStore(database)
        self.meta: Meta = Meta(database)

    @cached_property
    def redis(self) -> RedisLedger:
        """Raises RedisNotRunning."""
        import redis

        from penstock_ledger import REDIS_TIMEOUT_S, RedisAddress, RedisLedger

        if self.redis_url is None:
            raise RedisNotRunning(
                f"the private Redis of {self.state.root if self.state else 'this job'} is not "
                "running; `penstock run` on the same state starts it"
            )
        client = RedisAddress.parse(self.redis_url).connect(
            socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
        )
        try:
            client.ping()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise no_redis(self.redis_url, error) from error
        self.redis_client = client
        return RedisLedger(client, self.meta.epoch())

    def redis_if_running(self) -> RedisLedger | None:
        try:
            return self.redis
        except RedisNotRunning:
            return None

    @cached_property
    def operations(self) -> JobOperations:
        """Return the operations on jobs, with Redis where it runs."""
        from penstock_producer.operations import JobOperations
        from penstock_producer.settings import ProducerSettings

        settings = ProducerSettings.load()
        if self.state is not None and settings.images_place is None:
            settings = settings.model_copy(update={"images_url": str(self.state.images)})
        return JobOperations(self.database, settings, self.redis_if_running())

    def stats(self, job: Job) -> dict[str, int]:
        """Return the Redis counters of a job, or what was kept of them.

        They decorate reports and decide nothing."""
        from penstock_cli.show.figures import KeptFigures

        ledger = self.redis_if_running()
        stats = ledger.stats(job.job_id) if ledger is not None else {}
        return KeptFigures.load(self.figures_path(job)).merged(stats) if self.state else stats

    def made_with(self, job: Job) -> list[MadeWith]:
        """Return what its results were made with."""
        from penstock_ledger import Provenance

        return Provenance(self.database).of(job.job_id)

    def moves(self, job: Job) -> list[LaneMove]:
        """Return how its lane was chosen and has changed."""
        from penstock_ledger import LaneMoves

        return LaneMoves(self.database).of(job.job_id) if job.moves else []

    def provider_batches(self, job: Job) -> list[BatchSum]:
        """Return the job's batches at providers, in a lane that has such."""
        from penstock_ledger import BatchFigures

        return BatchFigures(self.database).sums(job.job_id)

    def held_by_batches(self, job: Job) -> tuple[Account | None, dict[str, int]]:
        """Return the account of its budget, and what each batch at a provider may cost.

        Costs are in millionths of a dollar."""
        from penstock_ledger import BatchFigures

        redis = self.redis_if_running()
        account = None if redis is None else redis.budgets.seen(job.job_id)
        return account, {} if account is None else BatchFigures(self.database).may_cost(job.job_id)

    def batches_lasted(self, provider: str, most: int) -> list[float]:
        """Return how many seconds the last batches of a provider took."""
        from penstock_ledger import BatchFigures

        return BatchFigures(self.database).lasted(provider, most)

    def quota(self, provider: str) -> QuotaView | None:
        """Return what the fleet's quota says of a provider.

        It is None where Redis does not run, or knows nothing of it."""
        from penstock_ratelimit.for_penstock import read_quotas

        if self.redis_if_running() is None or self.redis_client is None:
            return None
        return next(iter(read_quotas(self.redis_client, quota_ids=[provider])), None)

    def seconds(self, job: Job) -> float | None:
        """Return seconds of work of a local job; None where only the calendar knows."""
        from penstock_cli.show.figures import KeptFigures

        return (KeptFigures.load(self.figures_path(job)).seconds or None) if self.state else None

    def figures_path(self, job: Job) -> Path:
        assert self.state is not None, "only local runs keep figures"
        return self.state.figures / f"{job.job_id}.json"

    def option(self) -> str:
        """Return `` --state DIR`` as the user has to type it, for commands that we print."""
        import shlex

        return f" --state {shlex.quote(str(self.state.root))}" if self.state else ""


@contextlib.contextmanager
def books(state: Path | None) -> Iterator[Books]:
    """Open the ledger for one command. Raises UsageProblem or SettingsError, each with its fix."""
    from penstock_ledger import open_database
    from penstock_producer.settings import ProducerSettings

    settings = ProducerSettings.load()
    if state is not None:
        folder = StateFolder.existing(state)
        running = EmbeddedRedis.find(folder.redis)
        redis_url = running.endpoint.redis_url if running else None
        database_url = folder.database_url
    else:
        folder = None
        refuse_without_database(settings)
        redis_url, database_url = settings.redis_url, settings.database_url
    database = open_database(database_url, waits=settings.database_waits, role="cli")
    try:
        yield Books(database, redis_url, folder)
    finally:
        database.close()


def redis_url(state: Path | None) -> str:
    """Return where the queue is: the configured one, or the private Redis of a state folder.

    Raises UsageProblem and RedisNotRunning."""
    from penstock_producer.settings import ProducerSettings

    if state is None:
        return ProducerSettings.load().redis_url
    running = EmbeddedRedis.find(StateFolder.existing(state).redis)
    if running is None:
        raise RedisNotRunning(f"nothing runs in {state}, and only its Redis knows this: start it")
    return running.endpoint.redis_url


def refuse_without_database(settings: ProducerSettings) -> None:
    """Refuse to look where no database is configured, or its file does not exist.

    Looking must not create a database, and a job must not go where no fleet looks.

    Raises UsageProblem.

    A SQLite file that exists was made on purpose, by `penstock migrate` or a service.
    """
    path = _sqlite_file(settings.database_url)
    if path is None or path.is_file():
        return
    hint = StateFolder.nearby()
    if "database_url" not in settings.model_fields_set:
        raise UsageProblem(
            "nothing is configured: set database_url and redis_url of your fleet in "
            f"./penstock.toml, or PENSTOCK_DATABASE_URL and PENSTOCK_REDIS_URL.{hint}"
        )
    raise UsageProblem(
        f"database_url is {settings.database_url}, and there is no such file: correct it, or "
        f"create the tables with `penstock migrate`.{hint}"
    )


def refuse_without_redis(client: redis.Redis, settings: ProducerSettings) -> None:
    """Check that the configured Redis answers.

    Raises UsageProblem where no Redis was configured and none answers at the default address,
    RedisNotRunning elsewhere."""
    import redis

    try:
        client.ping()
    except (redis.ConnectionError, redis.TimeoutError) as error:
        if "redis_url" in settings.model_fields_set:
            raise no_redis(settings.redis_url, error) from error
        raise UsageProblem(
            "nothing is configured, and no Redis answers at "
            f"{without_password(settings.redis_url)}: set redis_url of your fleet in "
            f"./penstock.toml, or PENSTOCK_REDIS_URL.{StateFolder.nearby()}"
        ) from error


def no_redis(url: str, error: Exception) -> RedisNotRunning:
    return RedisNotRunning(
        f"no Redis answers at {without_password(url)} ({error}); "
        "start it, or set redis_url (PENSTOCK_REDIS_URL) to the one you mean"
    )


def _sqlite_file(url: str) -> Path | None:
    """Return the file behind a SQLite URL; None for servers and for databases in memory."""
    name = url.partition("?")[0].removeprefix("sqlite:///")
    return Path(name) if url.startswith("sqlite:///") and name not in ("", ":memory:") else None


def without_password(url: str) -> str:
    """Return a URL without its secrets, fit to be printed."""
    from penstock_ledger import without_secrets

    return without_secrets(url)

"""What jobs from remote doors may ask for, and which paths of a provider any job may."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock_ledger import ApiKeyStore, DatabaseUnusable, JobStore, NewApiKey, open_database
from penstock_ledger.model import FeedKind, NewJob
from penstock_producer import JobSpec, Producer, SourceError, SpecError
from penstock_producer.accepting.remote_limits import DoorSettings, RemoteLimits
from penstock_producer.settings import ProducerSettings
from penstock_workers.errors import EndpointRefused, PricesMissing
from penstock_workers.item.job_view import JobView
from penstock_workers.item.run.reading import read_job
from penstock_workers.settings import ProviderSettings, WorkerSettings


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        ({"preprocess": "logging:setLogRecordFactory"}, "hook_modules allows none"),
        ({"postprocess": "os.path:join"}, "hook_modules allows none"),
        ({"priority": "urgent", "tenant": "b"}, "doors.urgent_tenants"),
        ({"weight": 11.0}, "doors.max_weight allows 10"),
        ({"timeout_s": 901.0}, "doors.max_timeout_s allows 900"),
        ({"max_attempts": 11}, "doors.max_attempts allows 10"),
    ],
)
def test_what_a_stranger_may_not_ask_for_is_refused_with_the_setting(
    asked: dict[str, Any], setting: str
) -> None:
    """By default remote jobs have no hooks, are not urgent, and ask for bounded weight, time and
    tries (B10, B19)."""
    with pytest.raises(SpecError, match=f"^job spec: /{next(iter(asked))}: .*{setting}"):
        RemoteLimits().check(JobSpec(**asked))


@pytest.mark.parametrize(
    ("tenants", "keys", "refusal"),
    [
        (None, False, None),
        (None, True, "there are API keys"),
        ((), False, "doors.tenants allows none"),
        (("beta",), True, "doors.tenants allows beta"),
        (("alpha",), True, None),
        (("*",), True, None),
    ],
)
def test_whose_budget_a_client_without_a_key_may_spend(
    tenants: tuple[str, ...] | None, keys: bool, refusal: str | None
) -> None:
    """From the first API key on a tenant has to be named by the setting; a door that knows the
    tenant asks nothing (S7)."""
    doors, spec = DoorSettings(tenants=tenants), JobSpec(tenant="alpha")
    RemoteLimits(doors, names_tenants=False).check(spec, lambda: keys)
    RemoteLimits(doors).check(JobSpec(), lambda: keys)
    if refusal is None:
        RemoteLimits(doors).check(spec, lambda: keys)
    else:
        with pytest.raises(SpecError, match=rf"^job spec: /tenant: .*{refusal}"):
            RemoteLimits(doors).check(spec, lambda: keys)


def test_a_remote_door_looks_for_keys_itself(tmp_path: Path) -> None:
    """A key that is made later closes the door to its tenants: for new jobs, and for open ones that
    others would pay (S7)."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    with contextlib.closing(open_database(url)) as database:
        database.migrate()
        door = Producer(
            ProducerSettings(database_url=url), database=database, remote_limits=RemoteLimits()
        )
        opened = door.open_job({"model": "m", "prompt": "{text}", "tenant": "alpha"}).job
        door.check_tenant(opened.job_id)
        ApiKeyStore(database).create(NewApiKey("first", "alpha", frozenset({"write"})))
        with pytest.raises(SpecError, match="there are API keys"):
            door.check_tenant(opened.job_id)
        with pytest.raises(SpecError, match="there are API keys"):
            door.open_job({"model": "m", "prompt": "{text}", "tenant": "alpha"})
        assert door.open_job({"model": "m", "prompt": "{text}"}).job.spec["tenant"] is None


def test_an_operator_can_allow_them() -> None:
    """Each cap is a setting: with it, the same job is accepted at a remote door (B10, B19)."""
    doors = DoorSettings(
        urgent_tenants=("a",),
        max_weight=50,
        max_timeout_s=5000,
        max_attempts=20,
        providers=("default", "local"),
    )
    remote_limits = RemoteLimits(doors, ("corp.hooks",))
    spec: dict[str, Any] = {
        "tenant": "a",
        "priority": "urgent",
        "weight": 50.0,
        "timeout_s": 5000.0,
        "max_attempts": 20,
    }
    remote_limits.check(
        JobSpec(
            **spec,
            provider="local",
            preprocess="corp.hooks.text:shorten",
            postprocess="corp.hooks:tag",
        )
    )
    with pytest.raises(SpecError, match=r"doors\.providers allows default, local"):
        remote_limits.check(JobSpec(provider="paid"))
    with pytest.raises(SpecError, match=r"hook_modules allows corp\.hooks"):
        remote_limits.check(JobSpec(preprocess="corp.hooks_of_another:f"))


def test_other_models_are_no_way_around_the_providers_of_a_door() -> None:
    """A model of a provider that the door does not allow is refused, also where the door has not
    heard of that provider."""
    remote_limits = RemoteLimits(DoorSettings(providers=("default",), max_attempts=4))
    remote_limits.check(JobSpec(fallback=["large", "default/meta/llama"]))
    RemoteLimits().check(JobSpec(fallback=["paid/large"]))
    remote_limits.check(
        JobSpec(lane="gpu", fallback=["paid/large"])
    )  # a model of the lane's own workers
    with pytest.raises(
        SpecError,
        match=r"/fallback: 'paid/large' is refused at this door.*doors\.providers allows default",
    ):
        remote_limits.check(JobSpec(fallback=["paid/large"]))
    chat = JobSpec(prompt="{text}", model="m", routes=["a=1 -> model=x provider=paid"])
    with pytest.raises(SpecError, match=r"/routes/0: 'paid' is refused at this door"):
        remote_limits.check(chat)
    with pytest.raises(SpecError, match=r"/escalate: 'paid' is refused at this door"):
        remote_limits.check(JobSpec(model="m", escalate="s<1 -> model=x provider=paid"))
    with pytest.raises(SpecError, match=r"/schema_repairs: .*doors\.max_attempts allows 4"):
        remote_limits.check(JobSpec(schema_repairs=5))


def test_workers_import_no_hooks_by_default() -> None:
    """Without `hook_modules` no job has code imported into a worker (B10)."""
    assert WorkerSettings().hook_modules == ()


@pytest.mark.parametrize(
    "endpoint",
    [
        "/v1/../../admin/keys",
        "/v1//chat",
        "/v1/./chat",
        "/v1/chat?x=1",
        "/v1/chat#x",
        "/v1/%2e%2e/keys",
        "//host/v1",
        "/v1\\keys",
        "@host/v1",
        "/v1/chat/",
        "v1/chat",
        "/v1/chat@host",
        "/" + "a" * 200,
        "/..",
        "/v1/.hidden",
        "",
    ],
)
def test_an_endpoint_is_a_plain_path(endpoint: str) -> None:
    """No spelling of a path means another place at the provider, which would get the fleet's key
    (B13)."""
    with pytest.raises(SpecError, match="/endpoint"):
        JobSpec(endpoint=endpoint)


def test_only_paths_of_inference_are_asked(tmp_path: Path) -> None:
    """A job that names another path of its provider is refused with the path and what is allowed
    (B13)."""
    with Producer(ProducerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")) as producer:
        for endpoint in (
            "/v1/chat/completions",
            "/v1/embeddings",
            "/v1/responses",
            "/v1/completions",
        ):
            producer.open_job(JobSpec(endpoint=endpoint))
        with pytest.raises(
            SpecError,
            match=r"'/v1/admin/keys' is not one of .*/v1/chat/completions.*default\.endpoints",
        ):
            producer.open_job(JobSpec(endpoint="/v1/admin/keys"))


def test_a_provider_may_answer_on_more_paths(tmp_path: Path) -> None:
    """The provider's setting `endpoints` adds a path, for those who submit and for those who call
    (B13)."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    settings = WorkerSettings(
        database_url=url, providers={"default": ProviderSettings(endpoints=("/v1/rerank",))}
    )
    with Producer(settings) as producer:
        job = producer.open_job(JobSpec(endpoint="/v1/rerank"))
        view = read_job(producer._jobs, settings)(job.job_id)
    assert view.spec.endpoint == "/v1/rerank"


def test_a_worker_sends_its_key_to_no_other_path(tmp_path: Path) -> None:
    """A job in the ledger that names another path is not worked on, by whatever way it came there
    (B13)."""
    settings = WorkerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")
    database = open_database(settings.database_url)
    database.migrate()
    jobs = JobStore(database)
    spec = JobSpec().to_json() | {"endpoint": "/v1/files"}
    jobs.create(NewJob("job_x", "x", spec, {"kind": "spool"}, "d", None, FeedKind.SPOOL), [])
    with pytest.raises(EndpointRefused, match=r"providers\.default\.endpoints"):
        read_job(jobs, settings)("job_x")
    database.close()


def test_a_worker_asks_each_model_of_a_job_as_its_own_provider_says(tmp_path: Path) -> None:
    """A fallback has the key, the price and the rights of its provider; where one has no price, a
    budget would not hold."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    cheap = ProviderSettings(usd_per_mtok_in=1, usd_per_mtok_out=1)
    settings = WorkerSettings(
        database_url=url, providers={"default": cheap, "free": ProviderSettings()}
    )
    with Producer(settings) as producer:
        spec = JobSpec(model="small", fallback=["org/middle", "free/large"])
        job = producer.open_job(spec)
        limited = producer.open_job(spec.model_copy(update={"budget_usd": 5.0}))
        view: JobView | None = read_job(producer._jobs, settings)(job.job_id)
        with pytest.raises(PricesMissing, match="free"):
            read_job(producer._jobs, settings)(limited.job_id)
    chain = []
    while view is not None:
        chain.append((view.spec.provider, view.spec.model, view.provider.usd_per_mtok_in))
        view = view.fallback
    assert chain == [("default", "small", 1), ("default", "org/middle", 1), ("free", "large", 0)]


@pytest.mark.parametrize("lane", ["gpu", "embed"])
def test_a_worker_that_hosts_a_model_takes_no_fallback_for_a_providers(
    lane: Literal["gpu", "embed"], tmp_path: Path
) -> None:
    """In such a lane a name with a slash is a model, whatever providers are configured; the job is
    accepted like any other."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    settings = WorkerSettings(
        database_url=url,
        lane=lane,
        providers={"default": ProviderSettings(), "free": ProviderSettings()},
    )
    with Producer(settings) as producer:
        job = producer.open_job(JobSpec(lane=lane, model="small", fallback=["free/large"]))
        view = read_job(producer._jobs, settings)(job.job_id).fallback
    assert view is not None
    assert (view.spec.provider, view.spec.model) == ("default", "free/large")


def test_a_forged_pin_is_no_source(tmp_path: Path) -> None:
    """`submit` makes its own pin of what it has read: a mapping that claims to be one is refused
    (B24)."""
    forged: Any = {
        "kind": "file",
        "uri": "/etc/passwd",
        "size": 1,
        "sha256": "0",
        "mtime_ns": 1,
        "max_line_bytes": 9,
    }
    with (
        Producer(ProducerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")) as producer,
        pytest.raises(SourceError, match="unsupported_source"),
    ):
        producer.submit(forged, JobSpec(prompt="{text}", model="m"))


@pytest.mark.parametrize("source", ["nul\x00.jsonl", "half\ud800.jsonl", "s3://[bucket/key"])
def test_impossible_sources_are_errors_of_ours(tmp_path: Path, source: str) -> None:
    """A NUL, half a character or broken brackets in a source is a SourceError that shows the value
    (B29)."""
    with (
        Producer(ProducerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")) as producer,
        pytest.raises(SourceError, match="invalid_"),
    ):
        producer.submit(source, JobSpec(prompt="{text}", model="m"))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("redis_url", "redis://host:99999/0"),
        ("redis_url", "redis://host:port/0"),
        ("s3_endpoint_url", "http://host:99999"),
        ("s3_endpoint_url", "http://"),
        ("providers", {"default": {"base_url": "http://host:99999/v1"}}),
        ("providers", {"default": {"base_url": "http://:8000/v1"}}),
        ("providers", {"default": {"metrics_url": "http://host:99999/metrics"}}),
        ("providers", {"default": {"metrics_url": "host/metrics"}}),
        ("providers", {"default": {"proxy": "http://host:99999"}}),
        ("gpu", {"upstream_url": "http://host:99999/v1"}),
    ],
)
def test_bad_ports_are_errors_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: Any
) -> None:
    """A URL whose port or host cannot be is refused by name when settings are read, not by the
    first call (B29)."""
    from penstock_producer import SettingsError

    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)
    with pytest.raises(SettingsError, match=f"setting {setting}"):
        WorkerSettings.load(**{setting: value})


def test_a_bad_port_of_the_database_is_an_error_of_ours() -> None:
    """A database URL whose port cannot be is refused by name before anything is connected (B29)."""
    with pytest.raises(DatabaseUnusable, match="port 99999"):
        open_database("postgresql://host:99999/db")

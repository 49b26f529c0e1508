"""A budget is refused where no price would ever count against it, at every door; so is a lane that
is not built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock_cli.errors import UsageProblem
from penstock_cli.main import command_line
from penstock_ledger import JobStore, open_database
from penstock_producer import Producer, ProducerSettings, SpecError
from penstock_producer.accepting.acceptance import check_other_lane
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProviderFacts
from penstock_workers.errors import PricesMissing
from penstock_workers.item.run.reading import read_job
from penstock_workers.settings import ProviderSettings, WorkerSettings

SPEC = {"prompt": "{text}", "model": "m", "budget_usd": 2}
NAMED = r"providers\.default\.usd_per_mtok_in and .*usd_per_mtok_out"
PRICED = {"default": ProviderFacts(usd_per_mtok_in=0.15)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": 1, "text": "t"}\n')
    return path


def test_a_budget_without_prices_is_refused(producer: Producer, source: Path) -> None:
    """Neither a file nor an open job gets a budget that nothing would count against, and the
    settings are named (D1, B11)."""
    for door in (lambda: producer.submit(source, SPEC), lambda: producer.open_job(SPEC)):
        with pytest.raises(SpecError, match=NAMED):
            door()
    job = producer.open_job({"prompt": "{text}", "model": "m"})
    with pytest.raises(SpecError, match=NAMED):
        producer.limit(job.job_id, budget_usd=3.0, deadline_s=None)


def test_a_budget_is_refused_beside_a_lane_that_reserves_nothing(url: str, source: Path) -> None:
    """Neither a file's lanes, nor a budget that comes later, nor a move: models of one's own take
    no money per token."""
    both = {"prompt": "{text}", "model": "m", "lanes": ["api", "gpu"]}
    with Producer(ProducerSettings(database_url=url, providers=PRICED)) as made:
        with pytest.raises(
            SpecError, match=r"lane gpu reserves nothing of it.*leave gpu out of lanes"
        ):
            made.submit(source, {**both, "budget_usd": 2})
        job = made.submit(source, both)
        with pytest.raises(SpecError, match="lane gpu reserves nothing of it"):
            made.limit(job.job_id, budget_usd=2.0, deadline_s=None)
        spec = JobSpec.accepted(SPEC)
        with pytest.raises(
            SpecError, match="a budget of 2 USD, and lane gpu reserves nothing of it"
        ):
            check_other_lane(spec, "gpu", ProducerSettings(database_url=url))
        check_other_lane(spec, "batch", ProducerSettings(database_url=url))


@pytest.mark.parametrize("settings", [ProducerSettings, WorkerSettings])
def test_a_budget_with_prices_is_accepted(settings: Any, url: str, source: Path) -> None:
    """Prices come from the same section as the workers' (B11); one of the two is enough."""
    prices = (
        PRICED
        if settings is ProducerSettings
        else {"default": ProviderSettings(usd_per_mtok_out=0.6)}
    )
    with Producer(settings(database_url=url, providers=prices)) as producer:
        assert producer.submit(source, SPEC).spec["budget_usd"] == 2


def test_prices_come_from_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service reads the prices of the workers' `penstock.toml`, and nothing else of its providers
    (B11)."""
    (tmp_path / "penstock.toml").write_text(
        "[providers.fast]\n"
        'base_url = "http://p/v1"\n'
        "rpm = 60\n"
        "usd_per_mtok_in = 0.15\n"
        "usd_per_mtok_out = 0.6\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = ProducerSettings.load()
    assert settings.prices("fast").prices_of("m") is not None
    assert settings.prices("default").prices_of("m") is None


@pytest.mark.parametrize("lane", ["gpu", "embed"])
def test_a_lane_without_money_has_no_budget(lane: str, producer: Producer) -> None:
    """A model of one's own costs nothing per token, so a budget there is refused, with a deadline
    as the advice (B11)."""
    with pytest.raises(
        SpecError, match="costs no money per token; leave it out, or give a deadline"
    ):
        producer.open_job(
            {"lane": lane, "prompt": "{text}", "endpoint": "/v1/embeddings", "budget_usd": 2}
        )


def test_a_worker_without_prices_pauses_the_job_instead_of_spending(url: str) -> None:
    """Prices that only the submitter knows would not hold a budget: the worker says so before the
    first call (B11)."""
    with Producer(ProducerSettings(database_url=url, providers=PRICED)) as producer:
        job_id = producer.open_job(SPEC).job_id
    database = open_database(url)
    with pytest.raises(PricesMissing, match=NAMED):
        read_job(JobStore(database), WorkerSettings(database_url=url))(job_id)
    priced = WorkerSettings(
        database_url=url, providers={"default": ProviderSettings(usd_per_mtok_in=0.15)}
    )
    assert read_job(JobStore(database), priced)(job_id).job_id == job_id
    database.close()


def test_the_command_line_refuses_a_budget_without_prices(
    source: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit --budget-usd` stops with the settings to fill in (D1)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", url)
    database = open_database(url)
    database.migrate()
    database.close()
    typed = ["submit", str(source), "--prompt", "{text}", "--model", "m", "--budget-usd", "2"]
    refused = CliRunner().invoke(command_line(), typed)
    assert isinstance(refused.exception, UsageProblem)
    assert str(refused.exception).startswith("--budget-usd: 2 USD would never be reached")
    assert "usd_per_mtok_in" in str(refused.exception)
    monkeypatch.setenv("PENSTOCK_PROVIDERS__DEFAULT__USD_PER_MTOK_IN", "0.15")
    assert CliRunner().invoke(command_line(), typed).output.startswith("job_")


@pytest.mark.parametrize(
    ("lane", "option", "why"),
    [
        ("batch", {"fallback": ["other"]}, "tried again with its own model"),
        ("api", {"batch_max_requests": 10}, "lane api makes no batches at a provider"),
        ("api", {"batch_files": "delete"}, "lane api makes no batches at a provider"),
    ],
)
def test_what_the_lane_cannot_do_is_refused(
    producer: Producer, lane: str, option: dict[str, object], why: str
) -> None:
    """Before anything is accepted: it would change nothing, and the person who asked would believe
    that it did."""
    with pytest.raises(SpecError, match=why):
        producer.open_job({"lane": lane, "prompt": "{text}", "model": "m", **option})


def test_a_job_that_would_cost_more_than_its_budget_is_told_or_refused(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From its first documents, before anything is spent: a warning, or nothing is accepted, as the
    job asks."""
    path = tmp_path / "in.jsonl"
    path.write_text(
        "".join(f'{{"id": {number}, "text": "{"word " * 80}"}}\n' for number in range(2_000))
    )
    spec = SPEC | {"params": {"max_tokens": 100}}  # about 2,000 x (90 + 100) tokens
    priced = {"default": ProviderFacts(usd_per_mtok_in=10, usd_per_mtok_out=10)}
    with Producer(ProducerSettings(database_url=url, providers=priced)) as producer:
        with pytest.raises(
            SpecError, match=r"/budget_usd: the job may cost about 3\.\d USD.*its budget is 2 USD"
        ) as refused:
            producer.submit(path, spec | {"over_budget": "refuse"}, job_key="j")
        assert refused.value.problems[0].code == "budget_below_estimate"
        assert caplog.messages == []
        assert (
            producer.submit(
                path, spec | {"over_budget": "refuse", "budget_usd": 6}, job_key="j"
            ).total
            == 2_000
        )
        assert caplog.messages == []
        assert producer.submit(path, spec, job_key="k").total == 2_000
        assert len(caplog.messages) == 1
        assert "would be paused on the way" in caplog.messages[0]
        # known already: it is not read again
        assert producer.submit(path, spec, job_key="k").total == 2_000
        assert len(caplog.messages) == 1

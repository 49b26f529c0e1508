"""What makes two submits the same job."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import update

from penstock_ledger.sql.tables import jobs
from penstock_producer import JobSpec, Producer
from penstock_producer.accepting.new_jobs import digest_of, options_of


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        (
            {"prompt": "Sum up: {text}", "model": "m", "params": {"max_tokens": 5}},
            "830588a594b6f6ba3606b0a778374c5c34c92d4f8971e87b8ad762b9a12b46c8",
        ),
        (
            {
                "prompt": "Sum up: {text}",
                "model": "m",
                "lane": "embed",
                "endpoint": "/v1/embeddings",
                "embedding_dtype": "int8",
            },
            "43675c179600fdba7bc8e187ca895566179bae883a4fa4eed3dd95e95e19e977",
        ),
        (
            {"prompt": "Sum up: {text}", "model": "m", "response_schema": {"type": "object"}},
            "1e5b19094e3b507fa4580356b532ef5385a337a9ce50e4a3b9678ebd5314eee3",
        ),
    ],
)
def test_a_job_of_an_earlier_release_is_the_same_job_after_an_upgrade(
    tmp_path: Path, spec: dict[str, Any], digest: str
) -> None:
    """The digests were taken from the first release: options that came later count only where they
    are not at their default."""
    source = tmp_path / "docs.jsonl"
    source.write_text('{"id":"a","text":"x"}\n')
    with Producer(database_url=f"sqlite:///{tmp_path / 'ledger.db'}") as producer:
        assert producer.submit(source, spec).digest == digest


READ = {
    "max_line_bytes": 1,
    "max_body_bytes": 2,
    "mtime_ns": 3,
    "members": [],
    "media_newest_ns": 4,
    "prepared": {},
}
CAME = {"door": "remote", "started_by": {}, "traceparent": "t"}


@pytest.mark.parametrize(
    ("pin", "digest"),
    [
        (
            {"kind": "s3", "uri": "s3://b/k", "size": 3, "etag": "x"},
            "4d2989742698241a6349455b956205768c054156da449213108c526bcdc1d5d1",
        ),
        (
            {"kind": "files", "uri": "a/", "sha256": "d", "files": [1]},
            "74a9c94dbfc04ec57d65458d74fc2ce57c47381fff7b0326378c3f6f453258bf",
        ),
        (
            {
                "kind": "texts",
                "uri": "a/",
                "sha256": "d",
                "count": 1,
                "size": 2,
                "newest_ns": 1,
                "segments": [["", ""]],
            },
            "a64bde227f9f31e5ee49a8cb52e5390742f6c1b771768b8c73a8d74cb6db9364",
        ),
    ],
)
def test_how_when_and_for_whom_a_source_was_read_makes_no_other_job(
    pin: dict[str, Any], digest: str
) -> None:
    """The digests are those of earlier releases; a folder that was moved is known by its content,
    an object by its place."""
    spec = JobSpec(model="m", prompt="{text}")
    assert digest_of(spec, pin) == digest_of(spec, pin | READ | CAME) == digest
    moved = digest_of(spec, pin | {"uri": "elsewhere"})
    assert (moved == digest) is ("sha256" in pin)


def test_an_option_that_is_given_counts(tmp_path: Path) -> None:
    """Every option but those on how the source is read makes another job where it is not at its
    default."""
    source = tmp_path / "docs.jsonl"
    source.write_text('{"id":"a","text":"x"}\n')
    plain = {"prompt": "Sum up: {text}", "model": "m", "params": {"temperature": 0}}
    given: list[dict[str, Any]] = [
        {"dedup": "on"},
        {"compress_prompt": True},
        {"schema_repairs": 1},
        {"fallback": ["n"]},
        {"response_format": "json_object"},
    ]
    with Producer(database_url=f"sqlite:///{tmp_path / 'ledger.db'}") as producer:
        first = producer.submit(source, plain).digest
        others = [producer.submit(source, plain | options).digest for options in given]
        assert producer.submit(source, plain | {"feeders": 3}).digest == first
    assert len({first, *others}) == 1 + len(given)


def test_a_job_of_a_release_before_keeps_its_identity_when_its_limits_change(
    tmp_path: Path,
) -> None:
    """Its stored spec says nothing of response_format: with a new deadline it is the job that is
    submitted again."""
    source = tmp_path / "docs.jsonl"
    source.write_text('{"id":"a","text":"x"}\n')
    spec: dict[str, Any] = {
        "prompt": "Sum up: {text}",
        "model": "m",
        "response_schema": {"type": "object"},
    }
    with Producer(database_url=f"sqlite:///{tmp_path / 'ledger.db'}") as producer:
        job = producer.submit(source, spec, job_key="night")
        stored = {name: value for name, value in job.spec.items() if name != "response_format"}
        before = (
            update(jobs)
            .where(jobs.c.job_id == job.job_id)
            .values(spec=orjson.dumps(stored).decode())
        )
        producer._database.write(lambda connection: connection.execute(before))
        assert producer.limit("night", budget_usd=None, deadline_s=60.0)
        again = producer.submit(source, spec | {"deadline_s": 60.0}, job_key="night")
        assert (again.job_id, again.spec["response_format"]) == (job.job_id, None)


def test_what_identifies_a_job_leaves_nothing_to_collect() -> None:
    """A door and a control process do it for each of their jobs, and seldom collect."""
    spec = JobSpec(prompt="Sum up: {text}", model="m")
    options_of(spec)  # what is made once
    gc.collect()
    gc.disable()
    try:
        options_of(spec)
        assert gc.collect() == 0
    finally:
        gc.enable()

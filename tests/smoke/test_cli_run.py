"""`penstock run` from the outside: a subprocess, a simulated provider, real files."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path

import pytest
from machine import RUN_TIMEOUT_S, Machine, eventually, simulator
from servers import S3Server


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_clean_job_ends_with_all_results_and_status_0(machine: Machine) -> None:
    """Every document has its result line, each step is said, the report adds up, no process is left
    behind; a fleet's broker is not asked (D19)."""
    machine.source(300)
    (machine.folder / "penstock.toml").write_text('broker_url = "amqp://no-such-host.invalid"\n')
    with simulator() as provider:
        status, told = machine.penstock(*machine.run_arguments(provider))
        assert status == 0, told + machine.logs()
        assert provider.stats()["requests"] == 300
    assert {line["custom_id"] for line in machine.lines("output.jsonl")} == {
        f"doc-{n}" for n in range(300)
    }
    assert machine.lines("errors.jsonl") == []
    report = machine.report()
    assert (report["job"], report["state"], report["total"]) == ("reviews", "completed", 300)
    assert (report["succeeded"], report["dead"], report["calls"]) == (300, 0, 300)
    assert "100 % succeeded" in told
    steps = [
        "setting up",
        "reading reviews.jsonl",
        "starting the private Redis",
        "starting 2 workers",
        "the first calls",
    ]
    assert sorted(steps, key=told.index) == steps, "each step is said when it begins (D19)"
    assert "goes through a Redis of its own" in told
    assert machine.leftovers() == []


def test_dead_letters_are_listed_shown_and_replayed(machine: Machine) -> None:
    """Poisoned documents and bad rows end as dead letters; the printed commands find, show and
    replay them."""
    machine.source(200, bad='{"id": "no-text"}\n')
    with simulator("--poison-rate", "0.05", "--seed", "3") as provider:
        status, told = machine.penstock(*machine.run_arguments(provider))
        assert status == 3, told + machine.logs()
        report = machine.report()
        assert report["succeeded"] + report["dead"] == 201
        assert (
            len(machine.lines("errors.jsonl"))
            == report["dead"]
            == sum(report["dead_by_reason"].values())
        )
        command = re.search(r"penstock (dlq list reviews --state \S+)", told)
        assert command is not None, told
        listed = machine.penstock(*command[1].split(), "--json")[1]
        letters = [json.loads(line) for line in listed.splitlines()]
        assert len(letters) == report["dead"]
        poisoned = next(letter["doc_id"] for letter in letters if letter["status_code"] == 400)
        state = command[1].split()[-1]
        shown = machine.penstock("dlq", "show", "reviews", poisoned, "--state", state)[1]
        assert "HTTP 400" in shown
        assert "Summarise: review" in shown
    with simulator() as healed:
        status, told = machine.penstock("dlq", "replay", "reviews", "--state", state)
        assert status == 0, told
        assert "as generation 2" in told
        assert "penstock run reviews.jsonl" in told
        assert f"nothing answers at {provider.url} now" in " ".join(told.split())
        status, told = machine.penstock(*machine.run_arguments(healed))
        assert status == 3, told + machine.logs()
    assert machine.report()["dead"] == 1
    assert machine.report()["succeeded"] == 200
    assert [line["custom_id"] for line in machine.lines("errors.jsonl")] == ["no-text"]


def test_a_second_pass_reads_the_failures_of_the_first(machine: Machine) -> None:
    """One command tries what died with another model, by the first run's state, and only that is
    paid for."""
    machine.source(100)
    with simulator("--poison-rate", "0.1", "--seed", "3") as provider:
        assert machine.penstock(*machine.run_arguments(provider))[0] == 3
    dead = {line["custom_id"] for line in machine.lines("errors.jsonl")}
    over = ["--from-job", "reviews", "--where", "status=dead", "--model", "large"]
    looked = machine.penstock("preview", *over, "--state", "out/.penstock", "--json")
    assert json.loads(looked[1])["rows"] == len(dead)
    with simulator() as healed:
        again = ["run", *over, "--out", "again", "--base-url", healed.url, "--no-progress"]
        status, told = machine.penstock(*again)
        assert (status, "holds no such job; give the --state" in told) == (2, True), told
        status, told = machine.penstock(*again, "--state", "out/.penstock")
        assert status == 0, told + machine.logs()
        assert healed.stats()["requests"] == len(dead)
    lines = [
        json.loads(line)
        for line in (machine.folder / "again" / "output.jsonl").read_text().splitlines()
    ]
    assert {line["custom_id"] for line in lines} == dead
    assert (
        json.loads((machine.folder / "again" / "report.json").read_text())["job"] == "reviews-again"
    )


def test_faults_on_the_way_cost_retries_not_documents(machine: Machine) -> None:
    """Rate limits, errors and broken connections are retried until every document has its
    result."""
    machine.source(200)
    faults = (
        "--throttle-rate",
        "0.05",
        "--error-rate",
        "0.03",
        "--drop-rate",
        "0.02",
        "--retry-after-s",
        "0.2",
    )
    with simulator(*faults) as provider:
        status, told = machine.penstock(*machine.run_arguments(provider, "--max-attempts", "10"))
        assert status == 0, told + machine.logs()
    assert machine.report()["succeeded"] == 200
    assert machine.report()["succeeded_after_retry"] > 0


def test_ctrl_c_stops_and_the_same_command_resumes(machine: Machine) -> None:
    """Exit status 130, nothing finished is lost or paid again, the drain says what it waits for,
    and the second run says how far the first one came (D20)."""
    machine.source(600)
    with simulator("--latency-ms", "100") as provider:
        arguments = machine.run_arguments(provider, "--concurrency", "10")
        process = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > 100)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 130, told + machine.logs()
        assert "resume with:  penstock run reviews.jsonl" in told
        assert re.search(
            r"stopping: nothing new is asked, and \d+ documents? with the workers may still be "
            r"answered",
            told,
        )
        assert machine.leftovers() == []
        finished = machine.report()["succeeded"]
        assert 0 < finished < 600
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert f"resuming: {finished} of 600 already finished" in told
        assert provider.stats()["requests"] <= 600 + 20
    assert machine.report()["succeeded"] == 600
    assert len(machine.lines("output.jsonl")) == 600


def test_a_second_run_of_a_folder_pays_nothing_twice(machine: Machine) -> None:
    """While one run works in a folder, another is refused, or with --wait goes on where the first
    ended, as a pod that replaces one on the same volume (docs/kubernetes.md)."""
    machine.source(200)
    with simulator("--latency-ms", "100") as provider:
        arguments = machine.run_arguments(provider, "--concurrency", "5", "--workers", "1")
        first = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > 20)
        status, told = machine.penstock(*arguments)
        assert (status, f"(pid {first.pid})" in told) == (2, True), told
        second = machine.start(*arguments, "--wait")
        assert second.stdout is not None
        assert any(f"another run (pid {first.pid}) is working" in line for line in second.stdout)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=RUN_TIMEOUT_S)
        told, _ = second.communicate(timeout=RUN_TIMEOUT_S)
        assert (first.returncode, second.returncode) == (130, 0), told + machine.logs()
        assert 200 <= provider.stats()["requests"] <= 200 + 5
    assert machine.report()["succeeded"] == 200
    assert machine.leftovers() == []


def test_killed_run_leaves_no_worker_and_resumes(machine: Machine) -> None:
    """kill -9 of the whole run: workers end by themselves, and the same command finishes the job.

    Its report has one figure of retries, of both runs (U11)."""
    machine.source(400)
    with simulator("--latency-ms", "100", "--error-rate", "0.1") as provider:
        arguments = machine.run_arguments(provider, "--concurrency", "10")
        process = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > 60)
        process.kill()
        process.communicate()
        eventually(lambda: not machine.at_work())
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
    report = machine.report()
    assert report["succeeded"] == 400
    assert report["retries"] == sum(report["retried_by_reason"].values()) > 20
    assert machine.leftovers() == []


def test_a_finished_job_is_not_paid_twice(machine: Machine) -> None:
    """Repeating the command of a finished job makes no call and ends with the same status, and so
    it does when the provider is gone; other commands read its folder."""
    machine.source(20)
    with simulator() as provider:
        assert machine.penstock(*machine.run_arguments(provider))[0] == 0
        status, told = machine.penstock(*machine.run_arguments(provider))
        assert status == 0
        assert "completed already: 20 of 20" in told
        assert provider.stats()["requests"] == 20
        arguments = machine.run_arguments(provider)
    status, told = machine.penstock(*arguments)
    assert (status, "no worker is started" in told) == (0, True), told
    state = str(machine.folder / "out/.penstock")
    assert "<html" in machine.penstock("report", "reviews", "--html", "--state", state)[1]
    assert "no schedules yet" in machine.penstock("schedule", "list", "--state", state)[1]
    assert "nothing runs in" in machine.penstock("refused", "--state", state)[1]


def test_another_job_under_the_same_key_is_refused(machine: Machine) -> None:
    """Other documents or options under the key of an existing job end with status 2 and advice."""
    machine.source(5)
    with simulator() as provider:
        assert machine.penstock(*machine.run_arguments(provider))[0] == 0
        machine.source(6)
        status, told = machine.penstock(*machine.run_arguments(provider))
    assert status == 2
    assert "--job" in told


def test_an_account_without_credit_pauses_the_job(machine: Machine) -> None:
    """Out of money: status 1, what to do, the command to resume; it then goes on where it was."""
    machine.source(100)
    with simulator("--credit-calls", "30") as poor:
        status, told = machine.penstock(*machine.run_arguments(poor, "--concurrency", "5"))
        assert status == 1, told + machine.logs()
        assert "paused" in told
        assert "resume with:  penstock run" in told
    with simulator() as rich:
        status, told = machine.penstock(*machine.run_arguments(rich, "--concurrency", "5"))
        assert status == 0, told + machine.logs()
    assert machine.report()["succeeded"] == 100


def test_another_terminal_sees_and_pauses_a_run(machine: Machine) -> None:
    """`status` and `pause` work on a running local job; the run ends with the reason and its
    command resumes it."""
    machine.source(1000)
    state = ("--state", "out/.penstock")
    with simulator("--latency-ms", "100") as provider:
        arguments = machine.run_arguments(provider, "--workers", "1", "--concurrency", "4")
        process = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > 50)
        seen = json.loads(machine.penstock("status", "reviews", "--json", *state)[1])
        assert (seen["state"], seen["total"], seen["reason"]) == ("running", 1000, None)
        assert machine.penstock(*arguments)[0] == 2, (
            "a second run on the same state must be refused"
        )
        status, told = machine.penstock("pause", "reviews", "--reason", "lunch", *state)
        assert (status, told) == (0, "reviews is paused\n")
        told, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 1, told + machine.logs()
        assert "is paused: lunch" in told
        status, told = machine.penstock(*machine.run_arguments(provider, "--concurrency", "100"))
        assert status == 0, told + machine.logs()
        assert "going on with a paused job (it was paused because: lunch)" in told
        assert provider.stats()["requests"] <= 1000 + 8
    assert machine.report()["succeeded"] == 1000


def test_a_spent_budget_pauses_and_a_higher_one_resumes(machine: Machine) -> None:
    """A budget is overshot by no more than a document or two; the same command says so without a
    call, and the printed one, with a budget for all, resumes the same job (D15)."""
    machine.source(160)
    with simulator("--latency-ms", "100") as provider:
        priced = ("--concurrency", "5", "--workers", "1", "--usd-per-mtok-out", "1000")
        status, told = machine.penstock(
            *machine.run_arguments(provider, *priced, "--budget-usd", "0.5")
        )
        assert status == 1, told + machine.logs()
        assert "budget_exhausted" in told
        spent, calls = machine.report()["succeeded"], provider.stats()["requests"]
        assert 0 < spent < 160
        assert 0.4 < machine.report()["cost_usd"] < 0.53
        status, again = machine.penstock(
            *machine.run_arguments(provider, *priced, "--budget-usd", "0.5")
        )
        assert (status, provider.stats()["requests"]) == (1, calls), again
        assert "starting" not in again
        command = re.search(
            r"Raise --budget-usd to .* Resume for example with: {2}penstock (run .*)", told
        )
        assert command is not None, told
        assert command[1] in again
        status, told = machine.penstock(*shlex.split(command[1]))
        assert status == 0, told + machine.logs()
        assert "limits of the job are now: budget $" in told
        assert f"resuming: {spent} of 160" in told
        assert provider.stats()["requests"] <= 160 + 5
    assert machine.report()["succeeded"] == 160


@pytest.mark.parametrize(
    ("content", "told_parts"),
    [
        ("", ["empty_source", "reviews.jsonl"]),
        ('{"id": "a", "text": "x"}\n{"id": "b"\n{"id": "c"\n', ["line 2", "invalid_json"]),
        ('{"id": "a", "text": "x"}\n' * 3, ["line 2", "duplicate"]),
    ],
)
def test_bad_input_is_refused_before_anything_is_spent(
    machine: Machine, content: str, told_parts: list[str]
) -> None:
    """Status 2, and a message with file, line and reason; the provider hears nothing."""
    (machine.folder / "reviews.jsonl").write_text(content)
    with simulator() as provider:
        status, told = machine.penstock(*machine.run_arguments(provider))
        assert provider.stats()["requests"] == 0
    assert status == 2, told
    for part in told_parts:
        assert part in told
    assert "Traceback" not in told


def test_a_missing_source_and_an_unwritable_folder_are_refused(machine: Machine) -> None:
    """Status 2 and the name of what is wrong."""
    with simulator() as provider:
        status, told = machine.penstock(*machine.run_arguments(provider))
        assert (status, "reviews.jsonl" in told) == (2, True), told
        machine.source(1)
        (machine.folder / "out").write_text("a file")
        status, told = machine.penstock(*machine.run_arguments(provider))
        assert (status, "--out out" in told) == (2, True), told


def test_a_job_reads_from_s3_and_writes_to_s3(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source and results may both be in a bucket; the report lies beside them, another job is kept
    from overwriting them, and a missing bucket is reported at once (D6)."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    client = s3_server.client()
    client.create_bucket(Bucket="night")
    machine = Machine(tmp_path)
    client.upload_file(str(machine.source(40)), "night", "in/reviews.jsonl")
    with simulator() as provider:
        job = machine.run_arguments(provider, "--state", "state")
        job[1], job[3] = "s3://night/in/reviews.jsonl", "s3://night/out"
        status, told = machine.penstock(*job)
        assert status == 0, told
        lines = (
            client.get_object(Bucket="night", Key="out/output.jsonl")["Body"].read().splitlines()
        )
        assert sorted(json.loads(line)["custom_id"] for line in lines) == sorted(
            f"doc-{n}" for n in range(40)
        )
        report = json.loads(client.get_object(Bucket="night", Key="out/report.json")["Body"].read())
        assert (report["succeeded"], report["total"]) == (40, 40)
        status, told = machine.penstock(*job, "--job", "another")
        assert (status, "result files of job 'reviews'" in told) == (2, True), told
        job[3] = "s3://no-such-bucket/out"
        status, told = machine.penstock(*job[:-1], "state-2")
        assert status == 2
        assert "no bucket 'no-such-bucket'" in told

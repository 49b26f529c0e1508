"""`penstock worker`, and `penstock doctor`, which checks that all is there that a job needs.

A worker is one process of the fleet, or one for each card of this machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_producer.job.lanes import lanes_in_words

if TYPE_CHECKING:
    from penstock_workers.settings import WorkerSettings
from collections import Counter

from penstock_cli.errors import EXIT_FAILED
from penstock_cli.job import options

TENSOR_PARALLEL = "tensor_parallel_size"


def worker(
    lane: Annotated[str, typer.Option(help=f"What this worker does: {lanes_in_words('or')}.")],
    concurrency: Annotated[
        int | None,
        typer.Option("-c", "--concurrency", min=1, help="Items in flight in this process."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Names this worker in Flower and in logs.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="gpu, embed: the model to host, a folder or a name.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="gpu: one of vLLM's own arguments, e.g. max_model_len=8k. Repeatable."),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="gpu: an adapter that requests may name, NAME=FOLDER. Repeatable."),
    ] = None,
    lora_from: Annotated[
        str | None,
        typer.Option(
            help=(
                "gpu: a folder, or s3://bucket/prefix, with a folder for each further adapter; "
                "they may come and go."
            )
        ),
    ] = None,
    gpus: options.Gpus = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(
            min=1, help="gpu: GPUs that share one model. With --gpus: a worker for each T GPUs."
        ),
    ] = None,
) -> None:
    """Run one worker process, or one for each GPU with --gpus, which are kept running.

    SIGTERM lets it finish what it holds. Everything else is read from penstock.toml and PENSTOCK_*
    variables.
    """
    from penstock_cli.job.given import parse_pairs
    from penstock_cli.processes.signals import end_with_parent
    from penstock_cli.settings import parent_pid

    parent = parent_pid()
    if parent is not None:
        end_with_parent(parent)
    from penstock_cli.doctor.worker import check
    from penstock_workers.__main__ import run_worker
    from penstock_workers.lanes.registry import check_lane
    from penstock_workers.settings import WorkerSettings

    check_lane(lane)
    given = {
        "model": model,
        "engine": _with_tensor_parallel(parse_pairs("--engine", engine or []), tensor_parallel),
        "lora": parse_pairs("--lora", lora or []),
        "lora_from": lora_from,
    }
    hosted = {key: value for key, value in given.items() if value}
    _refuse_foreign_flags(lane, hosted)
    settings = WorkerSettings.load(
        lane=lane, concurrency=concurrency, **({lane: hosted} if hosted else {})
    )
    if gpus is not None:
        sys.exit(_serve_gpus(gpus, settings, _flags(lane, concurrency, hosted), name))
    check(settings)
    run_worker(lane, concurrency=concurrency, name=name, hosted=hosted)


def _serve_gpus(gpus: str, settings: WorkerSettings, flags: list[str], name: str | None) -> int:
    from penstock_cli.doctor.worker import check
    from penstock_cli.processes.gpu_workers import GpuWorkers, cards_asked, check_ports, serve
    from penstock_workers.settings import process_name

    workers = GpuWorkers(
        cards_asked(gpus, settings),
        [sys.executable, "-m", "penstock_cli", "worker", *flags],
        name or f"{settings.lane}-{process_name()}@%h",
    )
    check_ports(workers)
    check(settings)
    return serve(workers)


def _flags(lane: str, concurrency: int | None, hosted: Mapping[str, Any]) -> list[str]:
    """Return the same command line for one worker, without its GPUs and its name."""
    flags = ["--lane", lane]
    if concurrency is not None:
        flags += ["--concurrency", str(concurrency)]
    for name, value in hosted.items():
        pairs = (
            [f"{key}={json.dumps(one)}" for key, one in value.items()]
            if isinstance(value, dict)
            else [value]
        )
        flags += [f"{_flag(name)}={pair}" for pair in pairs]
    return flags


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _with_tensor_parallel(engine: dict[str, Any], tensor_parallel: int | None) -> dict[str, Any]:
    """Add --tensor-parallel to the engine's arguments.

    Raises UsageProblem where both flags give another number.
    """
    from penstock_cli.errors import UsageProblem

    if tensor_parallel is None:
        return engine
    before = engine.get(TENSOR_PARALLEL)
    if before is not None and str(before) != str(tensor_parallel):
        raise UsageProblem(
            f"--tensor-parallel {tensor_parallel} and --engine {TENSOR_PARALLEL}={before} differ: "
            "give one of them"
        )
    return engine | {TENSOR_PARALLEL: tensor_parallel}


def _refuse_foreign_flags(lane: str, given: Iterable[str]) -> None:
    """Raise UsageProblem for a flag that sets what this lane does not have."""
    from penstock_cli.errors import UsageProblem
    from penstock_workers.lanes.registry import REGISTRY

    for name in given:
        takers = [
            row.name
            for row in REGISTRY.values()
            if row.settings and name in row.settings.model_fields
        ]
        if lane not in takers:
            raise UsageProblem(
                f"{_flag(name)} is for workers of lane {' or '.join(takers)}, and this one serves "
                f"lane {lane}: leave it out"
            )


def doctor(
    provider: Annotated[
        bool, typer.Option(help="Also ask each configured provider for its models.")
    ] = True,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Create or upgrade the tables of the database.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Report a refusal of this subject as a warning, because you know it to be safe. "
                "Repeatable."
            )
        ),
    ] = None,
    lane: Annotated[
        str | None,
        typer.Option(
            help="Look at all that a worker of this lane needs of this machine: gpu or embed."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --lane: the model to look at, in place of the settings'."),
    ] = None,
    attempt: Annotated[
        bool,
        typer.Option(
            "--try", help="With --lane: load the model and run one token, as a worker would."
        ),
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Also write all that a bug report needs into this new file, without secrets; - is "
                "standard output."
            ),
        ),
    ] = None,
    state: options.StateOption = None,
) -> None:
    """Check what a job needs and what is unsafe, and say how to repair it.

    Exit status: 0 nothing is refused (there may be warnings), 1 something is `bad`.
    """
    from rich.text import Text

    from penstock_cli.doctor import bundle
    from penstock_cli.doctor.checks import examine
    from penstock_cli.doctor.fleet import asked_lane
    from penstock_cli.doctor.worker import Finding, Verdict
    from penstock_cli.files import STDOUT
    from penstock_cli.show.terminal import console as make_console

    if report is not None:
        bundle.check_place(report)
    console = make_console()
    console.quiet = report == STDOUT  # the report has it all
    styles = {Verdict.GOOD: "green", Verdict.WARNING: "yellow", Verdict.BAD: "red"}
    seen, findings = Counter[Verdict](), list[Finding]()
    wanted = asked_lane(lane, model, attempt=attempt)
    for finding in examine(
        state, knock=provider, migrate=migrate, accept=accept or (), lane=wanted
    ):
        seen[finding.verdict] += 1
        findings.append(finding)
        mark = Text.assemble(
            (f"{finding.verdict:<5}", styles[finding.verdict]),
            f"{finding.subject:<12}",
            finding.seen,
        )
        console.print(mark, soft_wrap=True)
        if finding.fix:
            console.print(Text(f"{'':<17}{finding.fix}", style="dim"), soft_wrap=True)
    refused, warned = seen[Verdict.BAD], seen[Verdict.WARNING]
    console.print(
        Text(f"{refused} refused, {warned} warnings, {seen[Verdict.GOOD]} good"), soft_wrap=True
    )
    if report is not None:
        bundle.write(report, bundle.report(findings, state, now=time.time()))
        console.print(Text(f"{report} is the report: read it before you attach it"), soft_wrap=True)
    raise typer.Exit(EXIT_FAILED if refused else 0)

"""Arguments and flags that several commands share.

Those of a job come from the table of options: flags.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.completion import job_keys
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS
from penstock_producer.job.sinks import tables_in_words

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="OpenAI Batch lines (JSON Lines), or plain records with --prompt: JSON Lines, CSV, "
        "TSV, Parquet or Arrow, the texts also as .gz or .zst. A file, or an object of s3://, "
        "gs:// or az://; a folder or prefix ending in / or a pattern is one job: files of "
        "rows, or texts such as .txt, .md and .html, of which each is a document. Or a job "
        "spec file, whose name ends in .yaml, .yml or .json. Left out with --from-job.",
    ),
]
SpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        metavar="FILE",
        help="A job spec file; SOURCE goes before the one in it, and flags before its options.",
    ),
]
FromJob = Annotated[
    str | None,
    typer.Option(
        metavar="JOB",
        help="Read the outcomes of a job that has ended, instead of a source.",
        autocompletion=job_keys,
    ),
]
FromSchedule = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=(
            "Each time, read the outcomes of that schedule's newest job that has ended, instead of "
            "a source."
        ),
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION",
        help="Only outcomes for which it holds: status=dead, reason=context_overflow, or a field "
        "of the answer, score<0.5. Repeatable: all must hold.",
    ),
]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="A job id or job key.", autocompletion=job_keys)
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help=(
            "The state folder of a local `penstock run` or `serve`, instead of the configured "
            "servers."
        ),
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, on one line.")]

Job = Annotated[
    str | None,
    typer.Option("--job", metavar="KEY", help="Names the job; the same key resumes it."),
]

Api = Annotated[
    str | None,
    typer.Option(metavar="KIND", help=RUN_OPTIONS["api"]),
]
BaseUrl = Annotated[str | None, typer.Option(help=RUN_OPTIONS["base_url"])]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(metavar="VAR", help=RUN_OPTIONS["api_key_env"]),
]
Rpm = Annotated[float | None, typer.Option(help=RUN_OPTIONS["rpm"])]
Tpm = Annotated[float | None, typer.Option(help=RUN_OPTIONS["tpm"])]
Itpm = Annotated[
    float | None,
    typer.Option(help=RUN_OPTIONS["itpm"]),
]
Otpm = Annotated[float | None, typer.Option(help=RUN_OPTIONS["otpm"])]
Metering = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help=RUN_OPTIONS["profile"]),
]
UsdIn = Annotated[
    float | None,
    typer.Option("--usd-per-mtok-in", help=RUN_OPTIONS["usd_per_mtok_in"]),
]
UsdOut = Annotated[
    float | None,
    typer.Option("--usd-per-mtok-out", help=RUN_OPTIONS["usd_per_mtok_out"]),
]

# -- of `penstock results`, where each is asked for once -------------------------------------------

OutputFormat = Annotated[
    str | None,
    typer.Option(
        metavar="F", help=f"jsonl, {tables_in_words()}. The tables have a row for every document."
    ),
]
EscapeFormulas = Annotated[
    bool, typer.Option("--escape-formulas", help=OPTIONS["escape_formulas"].help)
]
Into = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help=(
            "A database that results are written into, by id: sqlite:///file, postgresql://…, "
            "env:NAME."
        ),
    ),
]
TableOrInto = Annotated[
    str | None,
    typer.Option("--table", "--into-table", metavar="T", help=OPTIONS["into_table"].help),
]
KeepColumns = Annotated[
    str,
    typer.Option(
        "--keep-columns",
        metavar=OPTIONS["keep_columns"].metavar,
        help=OPTIONS["keep_columns"].help,
    ),
]
Order = Annotated[
    str, typer.Option("--order", metavar=OPTIONS["order"].metavar, help=OPTIONS["order"].help)
]
IntoId = Annotated[str, typer.Option("--into-id", metavar="COLUMN", help=OPTIONS["into_id"].help)]

# -- of `penstock run` alone -----------------------------------------------------------------------

Out = Annotated[str | None, typer.Option(metavar="DIR", help=RUN_OPTIONS["out"])]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=256, help=RUN_OPTIONS["workers"]),
]
Gpus = Annotated[str | None, typer.Option(help=RUN_OPTIONS["gpus"])]
Concurrency = Annotated[int | None, typer.Option(min=1, help=RUN_OPTIONS["concurrency"])]
LocalState = Annotated[
    Path | None,
    typer.Option("--state", help=RUN_OPTIONS["state"]),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help=("Check source and options, show what `penstock preview` shows; nothing is started."),
    ),
]
Sample = Annotated[
    int | None,
    # more is a job of its own
    typer.Option(min=1, max=10_000, help=RUN_OPTIONS["sample"]),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help=RUN_OPTIONS["no_progress"])]
Wait = Annotated[bool, typer.Option("--wait", help=RUN_OPTIONS["wait"])]


@dataclass(frozen=True, slots=True)
class ProviderFlags:
    """The provider options as they were typed; None leaves the configured value."""

    api: Api = None
    base_url: BaseUrl = None
    api_key_env: ApiKeyEnv = None
    profile: Metering = None
    rpm: Rpm = None
    tpm: Tpm = None
    itpm: Itpm = None
    otpm: Otpm = None
    usd_per_mtok_in: UsdIn = None
    usd_per_mtok_out: UsdOut = None


@dataclass(frozen=True, slots=True)
class RunFlags:
    """The options of `penstock run` itself as they were typed.

    None leaves what the job spec file says, or the default.
    """

    out: Out = None
    job: Job = None
    workers: Workers = None
    gpus: Gpus = None
    concurrency: Concurrency = None
    state: LocalState = None
    dry_run: DryRun = False
    sample: Sample = None
    no_progress: NoProgress = False
    wait: Wait = False
    from_job: FromJob = None
    where: Where = None

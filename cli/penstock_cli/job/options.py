"""Arguments and flags that several commands share. Those of a job come from the table of options: flags.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

JOB = "The job"
PROVIDER = "The provider"
MACHINE = "This machine"

Source = Annotated[
    str,
    typer.Argument(help="JSON Lines: OpenAI Batch lines, or plain records with --prompt. A file or s3://bucket/key."),
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job id or job key.")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="The state folder of a local `penstock run`, instead of the configured servers."),
]
OutputFile = Annotated[
    str,
    typer.Option("--output", "-o", metavar="FILE", help="A file, s3://bucket/key, or - for standard output."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable, on one line.")]

Job = Annotated[
    str | None,
    typer.Option("--job", metavar="KEY", help="Names the job; the same key resumes it.", rich_help_panel=JOB),
]

BaseUrl = Annotated[str | None, typer.Option(help="An OpenAI-compatible server.", rich_help_panel=PROVIDER)]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(metavar="VAR", help="The environment variable that holds the API key.", rich_help_panel=PROVIDER),
]
Rpm = Annotated[float | None, typer.Option(help="Requests per minute.", rich_help_panel=PROVIDER)]
Tpm = Annotated[float | None, typer.Option(help="Tokens per minute, in and out together.", rich_help_panel=PROVIDER)]
Itpm = Annotated[
    float | None,
    typer.Option(help="Input tokens per minute, where the provider limits them apart.", rich_help_panel=PROVIDER),
]
Otpm = Annotated[float | None, typer.Option(help="Output tokens per minute, likewise.", rich_help_panel=PROVIDER)]
Metering = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="How the provider meters: openai, anthropic, vllm, …; left out, its address decides.",
        rich_help_panel=PROVIDER,
    ),
]
UsdIn = Annotated[
    float | None,
    typer.Option("--usd-per-mtok-in", help="Price of a million input tokens.", rich_help_panel=PROVIDER),
]
UsdOut = Annotated[
    float | None,
    typer.Option("--usd-per-mtok-out", help="Price of a million output tokens.", rich_help_panel=PROVIDER),
]

# -- results as tables -------------------------------------------------------------------------------------------------

OutputFormat = Annotated[
    str | None,
    typer.Option(metavar="F", help="jsonl, csv or parquet. The tables have a row for every document."),
]
EscapeFormulas = Annotated[
    bool, typer.Option("--escape-formulas", help="CSV: an apostrophe in front of what a spreadsheet would run.")
]
Into = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A database that results are written into, by id: sqlite:///file, postgresql://…"),
]
IntoTable = Annotated[
    str | None, typer.Option("--into-table", metavar="T", help="The table of --into; made where there is none.")
]
TableOrInto = Annotated[
    str | None,
    typer.Option("--table", "--into-table", metavar="T", help="The table of --into; made where there is none."),
]

# -- of `penstock run` alone -------------------------------------------------------------------------------------------

DEFAULT_WORKERS = 2  # one goes on while the other restarts; a single one already keeps up with most providers
DEFAULT_ENGINES = 1  # of lanes with a model of their own: each worker loads it and takes the whole machine

Out = Annotated[str, typer.Option(metavar="DIR", help="Folder or s3://bucket/prefix for the result files.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=256,
        help=f"Worker processes (default: {DEFAULT_WORKERS}; with a model in them: {DEFAULT_ENGINES}).",
        rich_help_panel=MACHINE,
    ),
]
Concurrency = Annotated[
    int | None, typer.Option(min=1, help="Requests in flight per worker process.", rich_help_panel=MACHINE)
]
LocalState = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Folder of the queue and the ledger (default: OUT/.penstock).", rich_help_panel=MACHINE
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check source and options, show the first requests and an estimate; nothing is called.",
        rich_help_panel=MACHINE,
    ),
]
Sample = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help="Only so many documents, spread over the source, as a job of its own in OUT/sample-…; "
        "the run of all takes its results over.",
        rich_help_panel=MACHINE,
    ),
]
NoProgress = Annotated[
    bool, typer.Option("--no-progress", help="Lines instead of a live panel.", rich_help_panel=MACHINE)
]


@dataclass(frozen=True, slots=True)
class ProviderFlags:
    """The provider options as they were typed; None leaves the configured value."""

    base_url: str | None = None
    api_key_env: str | None = None
    profile: str | None = None
    rpm: float | None = None
    tpm: float | None = None
    itpm: float | None = None
    otpm: float | None = None
    usd_per_mtok_in: float | None = None
    usd_per_mtok_out: float | None = None

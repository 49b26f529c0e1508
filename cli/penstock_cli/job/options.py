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

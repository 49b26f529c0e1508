"""The options of the job commands, spelled once, and what they say together."""

from __future__ import annotations

from dataclasses import dataclass, field
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

Lane = Annotated[str, typer.Option(help="How documents are inferred: api, gpu or embed.", rich_help_panel=JOB)]
Model = Annotated[str | None, typer.Option(help="The model, for lines that name none.", rich_help_panel=JOB)]
Endpoint = Annotated[
    str | None,
    typer.Option(
        help="The path of the request (default: /v1/chat/completions; lane embed: /v1/embeddings).", rich_help_panel=JOB
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option(help='Template over the fields of a plain record: "Summarise: {text}".', rich_help_panel=JOB),
]
System = Annotated[str | None, typer.Option(help="A system message before the prompt.", rich_help_panel=JOB)]
IdField = Annotated[str, typer.Option(help="The field of a plain record that names the document.", rich_help_panel=JOB)]
Param = Annotated[
    list[str] | None,
    typer.Option(help="A request parameter, e.g. max_tokens=200 or temperature=0. Repeatable.", rich_help_panel=JOB),
]
MaxAttempts = Annotated[int, typer.Option(help="Tries per document, the first included.", rich_help_panel=JOB)]
Timeout = Annotated[str, typer.Option(help="Time for one request, e.g. 120s.", rich_help_panel=JOB)]
Deadline = Annotated[
    str | None,
    typer.Option(
        help="Time for the whole job, e.g. 8h or 90m; what is left then is a dead letter.", rich_help_panel=JOB
    ),
]
BudgetUsd = Annotated[
    float | None,
    typer.Option(
        help="Pause the job when it has cost this much; needs the provider's prices (usd_per_mtok_in and _out).",
        rich_help_panel=JOB,
    ),
]
MaxBadRows = Annotated[
    str, typer.Option(help="Unusable rows to accept as dead letters: a number or a share.", rich_help_panel=JOB)
]
Priority = Annotated[
    str,
    typer.Option(
        help="urgent passes what waits already, low takes a small part while others run: urgent, normal or low.",
        rich_help_panel=JOB,
    ),
]
Weight = Annotated[
    float,
    typer.Option(help="The job's part of the fleet beside others of its tenant: 2 is twice.", rich_help_panel=JOB),
]
Tenant = Annotated[
    str | None, typer.Option(help="Whose job it is: tenants share the fleet evenly.", rich_help_panel=JOB)
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Called in the workers with each item before it is sent; docs/hooks.md.",
        rich_help_panel=JOB,
    ),
]
Postprocess = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="Called with each answer before it is stored.", rich_help_panel=JOB),
]
ResponseSchema = Annotated[
    Path | None,
    typer.Option(
        "--response-schema",
        metavar="FILE",
        help="A JSON schema that the text of every answer must satisfy; others are tried again.",
        rich_help_panel=JOB,
    ),
]
OnOverflow = Annotated[
    str,
    typer.Option(
        help="Of a prompt longer than the model's context (gpu and embed lanes): fail, shrink max_tokens, "
        "or trim the prompt as well.",
        rich_help_panel=JOB,
    ),
]
PrefixOrder = Annotated[
    bool | None,
    typer.Option(
        "--prefix-order/--no-prefix-order",
        help="Feed prompts with alike beginnings together, for the engine's prefix cache; "
        "left out, in gpu jobs with a prompt.",
        show_default=False,
        rich_help_panel=JOB,
    ),
]
Job = Annotated[
    str | None,
    typer.Option("--job", metavar="KEY", help="Names the job; the same key resumes it.", rich_help_panel=JOB),
]

Provider = Annotated[
    str, typer.Option(help="A provider from penstock.toml; the flags below override it.", rich_help_panel=PROVIDER)
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
        help="How the provider meters: openai, anthropic, vllm, …; told from its address when left out.",
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
class JobFlags:
    """The job options as they were typed."""

    lane: str = "api"
    model: str | None = None
    endpoint: str | None = None  # as the lane wants it
    prompt: str | None = None
    system: str | None = None
    id_field: str = "id"
    params: list[str] = field(default_factory=list)
    max_attempts: int = 4
    timeout: str = "120s"
    deadline: str | None = None
    budget_usd: float | None = None
    max_bad_rows: str = "1%"
    priority: str = "normal"
    weight: float = 1.0
    tenant: str | None = None
    preprocess: str | None = None
    postprocess: str | None = None
    on_overflow: str = "fail"
    prefix_order: bool | None = None
    response_schema: Path | None = None
    provider: str = "default"


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

"""`penstock simulate`: the command. Its flags are the fields of SimulatorConfig."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from penstock_simulate.config import CHOICES, SimulatorConfig


class Flag(NamedTuple):
    """One flag: the panel that it stands in, and its sentence."""

    panel: str
    help: str


def _listed(field: str) -> str:
    return ", ".join(CHOICES[field])


_SERVER = {
    "host": "The address to listen on.",
    "port": "The port; 0 takes a free one.",
    "structured": "What a response_format gets: an answer that fits its `json_schema`, a "
    "`json_object` at most, a refusal (`none`), or text as if it were not there "
    "(`ignored`).",
    "api_key": "Refuse every other key with 401.",
    "call_log": "Append one JSON line per call, before it is answered.",
    "seed": "Decides which call gets which fault.",
}
_LIMITS = {
    "like": f"Meter, and refuse, as a provider or a server does: {_listed('like')}. Flags given "
    "beside it go first.",
    "rpm": "Requests per minute.",
    "tpm": "Tokens per minute.",
    "itpm": "Input tokens per minute.",
    "otpm": "Output tokens per minute.",
    "rpd": "Requests per day.",
    "tpd": "Tokens per day.",
    "window": "`bucket` refills all the time, `10s` and `minute` at each start. Default: bucket.",
    "tokens_window": "For tokens. Default: the same window.",
    "depth_s": "What a bucket holds, in seconds of its rate. Default: 10.",
    "charge": "`reserve`: prompt + max_tokens, never refunded (default); `actual`: what usage "
    "says; `settle`: reserved, then corrected at the end; `output-as-produced`: output "
    "over the time of the answer; `input`: the prompt.",
    "unset_max_tokens": "Reserved for a request without max_tokens. Default: 256.",
    "burndown": "Tokens that one of output counts for, once settled. Default: 1.",
    "charge_failed": "Refused and failed calls use up limits too.",
    "headers": f"Rate-limit headers: {_listed('headers')}. Default: openai.",
    "foreign_share": "Share of every limit that other clients of the same key use.",
}
_CAPACITY = {
    "max_concurrency": "Calls in flight that are worked on.",
    "crowded": "More calls get `429` (default) or `503`, or wait in a `queue` without end.",
    "scheduling_policy": "The queue's order, as vLLM's option: `fcfs` (default), or `priority`.",
    "ramp_percent": "Growth within --ramp-s above this many percent gets 429 slow_down.",
    "ramp_s": "The span over which growth is measured.",
    "ramp_free_rpm": "Below these requests per minute nothing is too steep.",
}
_LATENCY = {
    "latency_ms": "Median time of an answer.",
    "latency_sigma": "Spread of the lognormal; 0 is none.",
    "latency_ms_per_token": "Added for each token of the answer.",
    "stream_hold_after": "Events of a streamed answer after which it stands still.",
}
_FAULTS = {
    "throttle_rate": "429 although within limits.",
    "error_rate": "500.",
    "overload_rate": "503 server_is_overloaded; 529 with Anthropic's headers.",
    "drop_rate": "The connection breaks before or within the answer.",
    "html_rate": "502 with an HTML page.",
    "truncate_rate": "200 with half a JSON body.",
    "error_body_rate": '200 with {"error": …}.',
    "hang_rate": "No answer for --hang-s.",
    "flex_full_share": "429 resource_unavailable in the service tier flex, by share of its calls.",
    "stream_cut_after": "Events of a streamed answer after which the connection breaks.",
    "retry_after_s": "What an injected 429 or 503 asks for.",
    "retry_style": f"How a wait is written: {_listed('retry_style')}. Default: both.",
    "hang_s": "How long a hanging call hangs.",
    "poison_rate": "Share of documents that can never succeed (400).",
    "credit_calls": "After this many calls the account is out of money.",
    "credit_usd": "After this much spent the account is out of money.",
    "usd_per_mtok_in": "Price of a million input tokens.",
    "usd_per_mtok_out": "Price of a million output tokens.",
    "encoding": "Count tokens as this encoding of tiktoken does, such as o200k_base. Default: four "
    "characters a token.",
    "cached_price": "Price of a token of a cached prompt, as a part of the ordinary one.",
    "prompt_cache_hits": "Share of requests that read a cached prompt, where none names a cache.",
    "usd_per_mtok_hour": "Rent of a million tokens in Gemini's explicit caches for an hour.",
    "prompt_cache_s": "How long a cached prompt is kept since its last use.",
    "credit_error": f"What an empty account gets: {_listed('credit_error')}. Default: the first.",
}
_HOSTILE = {
    "hostile": "Kinds with commas between, or `all`; `list` shows what there is and ends.",
    "hostile_share": "Share of calls that are answered so.",
    "hostile_documents": (
        "Share of documents whose every call is answered so, always in the same kind."
    ),
    "hostile_for_s": "For so many seconds from the first call; then all is well.",
    "certificate": f"Serve https with one that is {_listed('certificate')}.",
    "authority": (
        "The authority of the certificate, made where the file is missing: for SSL_CERT_FILE."
    ),
}
_BATCHES = {
    "batch_s": "How long a batch runs, the median.",
    "batch_sigma": "Spread of the lognormal; 0 is none.",
    "batch_step_s": "How long validating, finalizing and cancelling take, each.",
    "batch_window_s": "What is not done so long after its creation expires.",
    "batch_stalled_share": "Share of batches that stand still half-way, until they expire.",
    "batch_expired_share": "Share of batches that expire half-way, when the others end.",
    "batch_create_500_share": "Share of creations that work and answer 500.",
    "batch_upload_500_share": "Share of uploads that work and answer 500.",
    "batch_no_upload_share": "Share of uploads that get 500 and do nothing.",
    "batch_call_500_share": "Share of calls of batch APIs that get 500 and do nothing.",
    "batch_cut_share": "Share of downloads of results whose connection ends half-way.",
    "batch_spoilt_share": (
        "Share of lines of results that are cut, come twice, or once more under an unknown id."
    ),
    "batch_look_404_s": (
        "How long a batch is not found, from the first look on at which it has answers."
    ),
    "batch_look_403s": "First looks at each batch that get 403.",
    "batch_file_404_s": (
        "How long an output is not found, from the first time that it is asked for."
    ),
    "batch_short_reads": "First downloads of each output that lack the last half of its lines.",
    "batch_enqueued_tokens": "Prompt tokens that a model's batches may have in the queue.",
    "batch_min_records": "Records that one of Bedrock's batches must have.",
    "batch_enqueued_requests": "Requests that Anthropic's batches may have in the queue.",
}
FLAGS: Mapping[str, Flag] = {
    field: Flag(panel, text)
    for panel, texts in {
        "Server": _SERVER,
        "Limits": _LIMITS,
        "Capacity": _CAPACITY,
        "Latency": _LATENCY,
        "Faults": _FAULTS,
        "Batches": _BATCHES,
        "Hostile answers, on this machine only": _HOSTILE,
    }.items()
    for field, text in texts.items()
}
"""By field, in the order of the help."""


PORT = 8399  # fixed, so that the address can be guessed; the field's own default takes a free one


def simulate(**given: Any) -> None:
    """Run a local OpenAI-compatible provider with strict limits and seeded faults.

    It counts every call: GET /stats.

    It has the batch APIs of OpenAI, Anthropic and Gemini, too: GET /batches shows what became of
    each batch.

    While it runs, POST /control changes settings and refuses on demand: {"rpm": 600} or
    {"refuse": {"kind": "slow_down", "calls": 3}}. GET /metrics has vLLM's queue gauges and
    its histograms of the times to the first token and in the queue, or the gauges of the
    server that `--like` names.
    """
    if given["hostile"] == "list":
        from penstock_simulate.hostile import listing

        typer.echo(listing())
        return
    config = SimulatorConfig(**given)
    from penstock_simulate.answers.answers import count_as
    from penstock_simulate.web import serve

    if config.encoding is not None:
        count_as(config.encoding)
    serve(config)


def _parameters() -> list[inspect.Parameter]:
    """Return each field as Typer reads a flag, in the order of the table."""
    types = get_type_hints(SimulatorConfig)
    defaults = {field.name: field.default for field in fields(SimulatorConfig)} | {"port": PORT}
    return [_parameter(name, types[name], defaults[name], flag) for name, flag in FLAGS.items()]


def _parameter(name: str, kind: Any, default: object, flag: Flag) -> inspect.Parameter:
    option = typer.Option(help=flag.help, rich_help_panel=flag.panel)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


simulate.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]  # what Typer reads

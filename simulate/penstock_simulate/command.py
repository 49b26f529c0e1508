"""`penstock simulate`: the flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_simulate.config import CHOICES, CREDIT_ERRORS, SimulatorConfig

SERVER, LIMITS, CAPACITY, LATENCY, FAULTS = "Server", "Limits", "Capacity", "Latency", "Faults"
HOSTILE = "Hostile answers, on this machine only"


def _flag(panel: str, text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=panel)


def simulate(
    host: Annotated[str, _flag(SERVER, "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _flag(SERVER, "The port; 0 takes a free one.")] = 8399,
    api_key: Annotated[str | None, _flag(SERVER, "Refuse every other key with 401.")] = None,
    call_log: Annotated[Path | None, _flag(SERVER, "Append one JSON line per call, before it is answered.")] = None,
    seed: Annotated[int, _flag(SERVER, "Decides which call gets which fault.")] = 0,
    like: Annotated[
        str | None,
        _flag(LIMITS, f"Meter as a provider does: {', '.join(CHOICES['like'])}. Flags given beside it go first."),
    ] = None,
    rpm: Annotated[float | None, _flag(LIMITS, "Requests per minute.")] = None,
    tpm: Annotated[float | None, _flag(LIMITS, "Tokens per minute.")] = None,
    itpm: Annotated[float | None, _flag(LIMITS, "Input tokens per minute.")] = None,
    otpm: Annotated[float | None, _flag(LIMITS, "Output tokens per minute.")] = None,
    rpd: Annotated[float | None, _flag(LIMITS, "Requests per day.")] = None,
    tpd: Annotated[float | None, _flag(LIMITS, "Tokens per day.")] = None,
    window: Annotated[
        str | None, _flag(LIMITS, "`bucket` refills all the time, `10s` and `minute` at each start. Default: bucket.")
    ] = None,
    tokens_window: Annotated[str | None, _flag(LIMITS, "For tokens. Default: the same window.")] = None,
    depth_s: Annotated[float | None, _flag(LIMITS, "What a bucket holds, in seconds of its rate. Default: 10.")] = None,
    charge: Annotated[
        str | None,
        _flag(
            LIMITS,
            "`reserve`: prompt + max_tokens, never refunded (default); `actual`: what usage says; `settle`: reserved, "
            "then corrected at the end; `output-as-produced`: output over the time of the answer; `input`: the prompt.",
        ),
    ] = None,
    unset_max_tokens: Annotated[
        int | None, _flag(LIMITS, "Reserved for a request without max_tokens. Default: 256.")
    ] = None,
    burndown: Annotated[
        int | None, _flag(LIMITS, "Tokens that one of output counts for, once settled. Default: 1.")
    ] = None,
    charge_failed: Annotated[bool, _flag(LIMITS, "Refused and failed calls use up limits too.")] = True,
    headers: Annotated[
        str | None, _flag(LIMITS, f"Rate-limit headers: {', '.join(CHOICES['headers'])}. Default: openai.")
    ] = None,
    foreign_share: Annotated[
        float, _flag(LIMITS, "Share of every limit that other clients of the same key use.")
    ] = 0.0,
    max_concurrency: Annotated[int | None, _flag(CAPACITY, "Calls in flight that are worked on.")] = None,
    crowded: Annotated[
        str | None, _flag(CAPACITY, "More calls get `429` (default) or `503`, or wait in a `queue` without end.")
    ] = None,
    ramp_percent: Annotated[
        float | None, _flag(CAPACITY, "Growth within --ramp-s above this many percent gets 429 slow_down.")
    ] = None,
    ramp_s: Annotated[float, _flag(CAPACITY, "The span over which growth is measured.")] = 60.0,
    ramp_free_rpm: Annotated[float, _flag(CAPACITY, "Below these requests per minute nothing is too steep.")] = 60.0,
    latency_ms: Annotated[float, _flag(LATENCY, "Median time of an answer.")] = 50.0,
    latency_sigma: Annotated[float, _flag(LATENCY, "Spread of the lognormal; 0 is none.")] = 0.3,
    latency_ms_per_token: Annotated[float, _flag(LATENCY, "Added for each token of the answer.")] = 0.0,
    throttle_rate: Annotated[float, _flag(FAULTS, "429 although within limits.")] = 0.0,
    error_rate: Annotated[float, _flag(FAULTS, "500.")] = 0.0,
    overload_rate: Annotated[float, _flag(FAULTS, "503 server_is_overloaded; 529 with Anthropic's headers.")] = 0.0,
    drop_rate: Annotated[float, _flag(FAULTS, "The connection breaks before or within the answer.")] = 0.0,
    html_rate: Annotated[float, _flag(FAULTS, "502 with an HTML page.")] = 0.0,
    truncate_rate: Annotated[float, _flag(FAULTS, "200 with half a JSON body.")] = 0.0,
    error_body_rate: Annotated[float, _flag(FAULTS, '200 with {"error": …}.')] = 0.0,
    hang_rate: Annotated[float, _flag(FAULTS, "No answer for --hang-s.")] = 0.0,
    retry_after_s: Annotated[float, _flag(FAULTS, "What an injected 429 or 503 asks for.")] = 1.0,
    retry_style: Annotated[
        str | None, _flag(FAULTS, f"How a wait is written: {', '.join(CHOICES['retry_style'])}. Default: both.")
    ] = None,
    hang_s: Annotated[float, _flag(FAULTS, "How long a hanging call hangs.")] = 600.0,
    poison_rate: Annotated[float, _flag(FAULTS, "Share of documents that can never succeed (400).")] = 0.0,
    credit_calls: Annotated[int | None, _flag(FAULTS, "After this many calls the account is out of money.")] = None,
    credit_usd: Annotated[float | None, _flag(FAULTS, "After this much spent the account is out of money.")] = None,
    usd_per_mtok_in: Annotated[float, _flag(FAULTS, "Price of a million input tokens.")] = 0.0,
    usd_per_mtok_out: Annotated[float, _flag(FAULTS, "Price of a million output tokens.")] = 0.0,
    credit_error: Annotated[
        str | None, _flag(FAULTS, f"What an empty account gets: {', '.join(CREDIT_ERRORS)}. Default: the first.")
    ] = None,
    hostile: Annotated[
        str | None, _flag(HOSTILE, "Kinds with commas between, or `all`; `list` shows what there is and ends.")
    ] = None,
    hostile_share: Annotated[float, _flag(HOSTILE, "Share of calls that are answered so.")] = 0.1,
    hostile_documents: Annotated[
        float, _flag(HOSTILE, "Share of documents whose every call is answered so, always in the same kind.")
    ] = 0.0,
    hostile_for_s: Annotated[
        float | None, _flag(HOSTILE, "For so many seconds from the first call; then all is well.")
    ] = None,
    certificate: Annotated[
        str | None, _flag(HOSTILE, f"Serve https with one that is {', '.join(CHOICES['certificate'])}.")
    ] = None,
    authority: Annotated[
        Path | None,
        _flag(HOSTILE, "The authority of the certificate, made where the file is missing: for SSL_CERT_FILE."),
    ] = None,
) -> None:
    """A local OpenAI-compatible provider with strict limits and seeded faults. It counts every call: GET /stats.

    While it runs, POST /control changes settings and refuses on demand: {"rpm": 600} or
    {"refuse": {"kind": "slow_down", "calls": 3}}. GET /metrics has vLLM's queue gauges.
    """
    if hostile == "list":
        from penstock_simulate.hostile import listing

        typer.echo(listing())
        return
    config = SimulatorConfig(**locals())
    from penstock_simulate.web import serve

    serve(config)

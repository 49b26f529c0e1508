"""`penstock simulate`: the flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.simulate.config import SimulatorConfig

LIMITS, LATENCY, FAULTS, SERVER = "Limits", "Latency", "Faults", "Server"


def simulate(
    host: Annotated[str, typer.Option(help="The address to listen on.", rich_help_panel=SERVER)] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", rich_help_panel=SERVER)] = 8399,
    api_key: Annotated[
        str | None, typer.Option(help="Refuse every other key with 401.", rich_help_panel=SERVER)
    ] = None,
    call_log: Annotated[
        Path | None, typer.Option(help="Append one JSON line per call, before it is answered.", rich_help_panel=SERVER)
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides who gets which fault.", rich_help_panel=SERVER)] = 0,
    rpm: Annotated[float | None, typer.Option(help="Requests per minute.", rich_help_panel=LIMITS)] = None,
    tpm: Annotated[float | None, typer.Option(help="Tokens per minute.", rich_help_panel=LIMITS)] = None,
    window: Annotated[
        str, typer.Option(help="`bucket` refills all the time, `minute` at each minute.", rich_help_panel=LIMITS)
    ] = "bucket",
    depth_s: Annotated[
        float, typer.Option(help="What the bucket holds, in seconds of its rate.", rich_help_panel=LIMITS)
    ] = 10.0,
    charge: Annotated[
        str,
        typer.Option(
            help="`reserve`: prompt + max_tokens, never refunded; `actual`: what usage says.", rich_help_panel=LIMITS
        ),
    ] = "reserve",
    charge_failed: Annotated[
        bool, typer.Option(help="Refused calls use up requests too.", rich_help_panel=LIMITS)
    ] = True,
    max_concurrency: Annotated[
        int | None, typer.Option(help="More calls in flight than this get 429.", rich_help_panel=LIMITS)
    ] = None,
    latency_ms: Annotated[float, typer.Option(help="Median time of an answer.", rich_help_panel=LATENCY)] = 50.0,
    latency_sigma: Annotated[
        float, typer.Option(help="Spread of the lognormal; 0 is none.", rich_help_panel=LATENCY)
    ] = 0.3,
    latency_ms_per_token: Annotated[
        float, typer.Option(help="Added for each token of the answer.", rich_help_panel=LATENCY)
    ] = 0.0,
    throttle_rate: Annotated[float, typer.Option(help="429 although within limits.", rich_help_panel=FAULTS)] = 0.0,
    error_rate: Annotated[float, typer.Option(help="500.", rich_help_panel=FAULTS)] = 0.0,
    overload_rate: Annotated[float, typer.Option(help="503 server_is_overloaded.", rich_help_panel=FAULTS)] = 0.0,
    drop_rate: Annotated[
        float, typer.Option(help="The connection breaks before or within the answer.", rich_help_panel=FAULTS)
    ] = 0.0,
    html_rate: Annotated[float, typer.Option(help="502 with an HTML page.", rich_help_panel=FAULTS)] = 0.0,
    truncate_rate: Annotated[float, typer.Option(help="200 with half a JSON body.", rich_help_panel=FAULTS)] = 0.0,
    error_body_rate: Annotated[float, typer.Option(help='200 with {"error": …}.', rich_help_panel=FAULTS)] = 0.0,
    hang_rate: Annotated[float, typer.Option(help="No answer for --hang-s.", rich_help_panel=FAULTS)] = 0.0,
    retry_after_s: Annotated[
        float, typer.Option(help="What an injected 429 or 503 asks for.", rich_help_panel=FAULTS)
    ] = 1.0,
    hang_s: Annotated[float, typer.Option(help="How long a hanging call hangs.", rich_help_panel=FAULTS)] = 600.0,
    poison_rate: Annotated[
        float, typer.Option(help="Share of documents that can never succeed (400).", rich_help_panel=FAULTS)
    ] = 0.0,
    credit_calls: Annotated[
        int | None, typer.Option(help="After this many calls: 429 insufficient_quota.", rich_help_panel=FAULTS)
    ] = None,
) -> None:
    """A local OpenAI-compatible provider with strict limits and seeded faults. It counts every call: GET /stats."""
    config = SimulatorConfig(**locals())
    from penstock_cli.simulate.web import serve

    serve(config)

"""`penstock keys`: who may come through the HTTP doors, and how much they may have."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli import command_help
from penstock_cli.errors import UsageProblem
from penstock_cli.job import options

if TYPE_CHECKING:
    from penstock_ledger import ApiKey, KeyLimits


app = typer.Typer(no_args_is_help=True, help="API keys for HTTP: create, list, revoke.")


@app.command(epilog=command_help.KEYS_CREATE)
def create(
    name: Annotated[str, typer.Argument(help="A name for the key, which the list shows.")],
    tenant: Annotated[
        str | None,
        typer.Option(
            help="The key sees and starts jobs of this tenant only; without, jobs of no tenant."
        ),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="read, write, infer, keys (make keys of its tenant), or admin (everything, of all "
            "tenants). Repeatable. [default: the first three]"
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="SPAN", help="When the key expires, e.g. 90d.")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Requests a minute of its tenant.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests of its tenant at once.")
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=(
                "What its tenant's jobs of a calendar month (UTC) may cost; no more are accepted "
                "after that."
            ),
        ),
    ] = None,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """Make a key and show its secret, this once. What is kept is a hash of it."""
    from penstock_cli.connect import books
    from penstock_ledger import (
        DEFAULT_SCOPES,
        KEY_NAME_CHARS,
        ApiKeyStore,
        KeyLimits,
        NewApiKey,
        is_tenant_of_key,
    )

    if not 0 < len(name) <= KEY_NAME_CHARS or not name.isprintable():
        raise UsageProblem(f"NAME has to be 1 to {KEY_NAME_CHARS} printable characters")
    if tenant is not None and not is_tenant_of_key(tenant):
        raise UsageProblem(
            f"--tenant {tenant[:80]!r}: give 1 to 64 letters, digits and . : @ _ -; it may not "
            "begin with job_"
        )
    if budget_usd is not None and tenant is None:
        raise UsageProblem("--budget-usd is a tenant's: give --tenant, too")
    if budget_usd is not None and not math.isfinite(budget_usd):
        raise UsageProblem(
            f"--budget-usd {budget_usd}: give a number of US dollars; without the option there is "
            "no budget"
        )
    limits = KeyLimits(requests_per_minute, concurrency, budget_usd)
    new = NewApiKey(name, tenant, _scopes(scope or list(DEFAULT_SCOPES)), _end_of(expires), limits)
    with books(state) as ledger:
        key_id, secret = ApiKeyStore(ledger.database).create(new)
    if as_json:
        typer.echo(json.dumps({"key_id": key_id, "secret": secret}))
        return
    typer.echo(secret)
    typer.echo(
        f"{key_id}: this is shown once. Clients send it as `Authorization: Bearer KEY`, or as "
        "`x-api-key: KEY`.",
        err=True,
    )


@app.command(name="list", epilog=command_help.KEYS_LIST)
def list_keys(as_json: options.JsonOption = False, state: options.StateOption = None) -> None:
    """List all keys, the newest first: what each may do, and when it was last used."""
    from penstock_cli.connect import books
    from penstock_cli.show.terminal import aligned
    from penstock_ledger import ApiKeyStore
    from penstock_producer.reporting.text import safe

    with books(state) as ledger:
        found = ApiKeyStore(ledger.database).list()
    if as_json:
        typer.echo(json.dumps([_as_json(key) for key in found]))
        return
    if not found:
        typer.echo(
            "there are no keys, so the doors listen on this machine only; penstock keys create "
            "makes one"
        )
        return
    header = ("key", "name", "tenant", "scopes", "state", "last used", "limits")
    for line in aligned(header, [_row(key) for key in found]):
        typer.echo(safe(line))


@app.command(epilog=command_help.KEYS_REVOKE)
def revoke(
    key: Annotated[str, typer.Argument(help="The id of the key: key_…")],
    state: options.StateOption = None,
) -> None:
    """End a key. Doors that are open refuse it within two seconds."""
    from penstock_cli.connect import books
    from penstock_ledger import ApiKeyStore

    with books(state) as ledger:
        store = ApiKeyStore(ledger.database)
        if store.get(key) is None:
            raise UsageProblem(f"no key has the id {key[:80]!r}; `penstock keys list` shows them")
        done = store.revoke(key)
    typer.echo(f"{key} is revoked" if done else f"{key} was revoked before")


def _scopes(given: list[str]) -> frozenset[str]:
    from penstock_ledger import SCOPES

    named = [part.strip() for one in given for part in one.split(",") if part.strip()]
    unknown = sorted(set(named) - set(SCOPES))
    if unknown or not named:
        raise UsageProblem(
            f"--scope {', '.join(unknown) or given!r}: give one or more of {', '.join(SCOPES)}"
        )
    return frozenset(named)


def _end_of(span: str | None) -> float | None:
    from penstock_producer.job.options import seconds_of

    if span is None:
        return None
    try:
        return time.time() + seconds_of(span)
    except ValueError as error:
        raise UsageProblem(f"--expires {span[:80]!r}: {error}") from None


def _row(key: ApiKey) -> tuple[str, ...]:
    return (
        key.key_id,
        key.name,
        key.tenant or "-",
        ",".join(sorted(key.scopes)),
        _state(key),
        _day(key.last_used_at) or "never",
        _limits(key.limits),
    )


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {_day(key.revoked_at)}"
    if key.expires_at is None:
        return "valid"
    return f"{'valid until' if key.valid(time.time()) else 'expired'} {_day(key.expires_at)}"


def _day(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _limits(limits: KeyLimits) -> str:
    parts = [
        f"{limits.requests_per_minute}/min" if limits.requests_per_minute is not None else "",
        f"{limits.concurrency} at once" if limits.concurrency is not None else "",
        f"{limits.budget_usd:g} USD/month" if limits.budget_usd is not None else "",
    ]
    return ", ".join(filter(None, parts)) or "-"


def _as_json(key: ApiKey) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(key), "scopes": sorted(key.scopes), "valid": key.valid(time.time())}

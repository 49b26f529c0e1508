"""`penstock estimate`: what a job would cost and take on each lane, before anything is spent."""

from __future__ import annotations

from penstock_cli.job import options
from penstock_cli.job.flags import takes_job_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import JsonOption, ProviderFlags


@takes_job_flags
def estimate(
    given: GivenJob,
    api: options.Api = None,
    base_url: options.BaseUrl = None,
    rpm: options.Rpm = None,
    tpm: options.Tpm = None,
    itpm: options.Itpm = None,
    otpm: options.Otpm = None,
    usd_per_mtok_in: options.UsdIn = None,
    usd_per_mtok_out: options.UsdOut = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a job would cost and take on each lane.

    Reads the whole source, calls nothing, and needs no key, no database
    and no Redis. Tokens are estimated from the first 1,000 documents.

    Exit status: 0, or 2 where a row limit, an option or the source is not usable.
    """
    from penstock_cli.run.estimate import estimated, show, show_json

    given = given.for_api(given.of_run("api", api))
    flags = ProviderFlags(
        base_url, None, None, rpm, tpm, itpm, otpm, usd_per_mtok_in, usd_per_mtok_out, api
    )
    found = estimated(given, given.provider(flags))
    (show_json if as_json else show)(found)

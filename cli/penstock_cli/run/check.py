"""Before anything starts, `penstock run` checks flags, settings, hooks, places and provider."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock_cli import files, result_forms
from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import check_hooks
from penstock_cli.job.jobspec import job_spec, with_own_model, with_provider
from penstock_cli.run.request import Plan, RunRequest, cards_of
from penstock_cli.state import StateFolder, is_remote
from penstock_producer.reporting.text import count
from penstock_producer.source_formats import is_database

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.show.progress import Progress
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.settings import ProviderSettings, WorkerSettings


KNOCK_TIMEOUT_S = 5.0
_PORTS = {"http": 80, "https": 443}


def knock(base_url: str) -> None:
    """Open a connection and close it again: nothing is asked, so nothing is paid.

    Raises UsageProblem.

    A name that does not resolve and a connection that is refused are errors now; a provider that is
    only slow passes.
    """
    from penstock_ledger.redaction import redact

    parts = urlsplit(base_url)
    port = parts.port or _PORTS.get(parts.scheme, 443)
    try:
        socket.create_connection((parts.hostname or "", port), KNOCK_TIMEOUT_S).close()
    except TimeoutError:
        return
    except OSError as error:
        raise UsageProblem(
            f"no server answers at {redact(base_url)} ({error.strerror or error}): check the URL "
            "and that the server runs"
        ) from error


def name_receiver(name: str, provider: ProviderSettings) -> None:
    """Say which host gets the documents and which key, where a settings file decides that.

    That file may not be the user's own."""
    from penstock_producer.reporting.text import safe
    from penstock_producer.settings import config_path

    config = config_path()
    if config is None:
        return
    host = urlsplit(provider.base_url).netloc.rpartition("@")[2]
    key = f"with the key of {provider.api_key_env}" if provider.api_key_env else "without a key"
    sys.stderr.write(
        safe(f"penstock: {config.resolve()}: provider {name!r} sends documents to {host}, {key}")
        + "\n"
    )


LOCAL_LEASE_S = 15.0  # renewed every 5 s by a thread that does nothing else


def checked(request: RunRequest, console: Console, progress: Progress) -> Plan:
    """Find everything that is wrong and can be found without the queue.

    Raises UsageProblem and SettingsError.
    """

    spec, (settings, *beside) = understood(request)
    cards = cards_of(request.gpus, (settings, *beside))
    settings, beside = with_short_lease(settings), [*map(with_short_lease, beside)]
    if asks_a_provider(spec):
        name_receiver(spec.provider, settings.provider(spec.provider))
        if not request.is_completed():
            knock(settings.provider(spec.provider).base_url)
    files.probe(request.out, request.source)
    files.refuse_other_jobs(request.out, request.job_key)
    to_write = result_forms.Tables.of(spec)
    result_forms.check_tables(to_write, spec, request.source, request.out)
    state = StateFolder.create(request.state)
    return Plan(
        request, spec.without_sinks(), to_write, settings, cards, beside, state, console, progress
    )


def understood(request: RunRequest) -> tuple[JobSpec, list[WorkerSettings]]:
    """Return the spec and the settings of each lane that the flags permit, the first one first.

    They are checked without a look at anything else. Raises UsageProblem and SettingsError."""
    from penstock_producer import SpecError
    from penstock_producer.accepting.acceptance import check_acceptable
    from penstock_producer.accepting.quality import check_prices
    from penstock_producer.sources import refuse_unreadable
    from penstock_workers.lanes.registry import check_lane

    spec = job_spec(request.given)
    if not is_remote(request.source) or is_database(request.source):
        refuse_unreadable(request.source)  # before anything that takes time, or asks for a key
    for lane in spec.permitted_lanes:
        check_lane(lane)
    check_hooks((spec.preprocess, spec.postprocess))
    of_lanes = [_settings_of(lane, spec, request) for lane in spec.permitted_lanes]
    try:
        check_acceptable(spec, of_lanes[0].prices(spec.provider))
        check_prices(spec, of_lanes[0].prices)
        for settings in of_lanes:
            _refuse_models_elsewhere(spec, settings)
    except SpecError as error:
        raise request.given.refusal(error) from error
    for settings in of_lanes:
        _refuse_what_is_missing(spec, settings)
    return spec, of_lanes


def _settings_of(lane: str, spec: JobSpec, request: RunRequest) -> WorkerSettings:
    """Return the settings of one lane. Raises UsageProblem and SettingsError."""
    from penstock_workers.settings import WorkerSettings

    settings = WorkerSettings.load(lane=lane, concurrency=request.concurrency)
    if settings.images_place is None:
        out = request.out if "://" in request.out else os.path.abspath(request.out)
        settings = settings.model_copy(update={"images_url": f"{out}/images"})
    if asks_a_provider(spec):
        others = [f"{provider}/-" for provider in spec.providers_of_rules]
        asked = [*(spec.fallback or ()), *others]
        settings = with_provider(settings, spec.provider, request.provider, asked)
    return _with_hooks(with_own_model(settings, spec), spec)


def _refuse_what_is_missing(spec: JobSpec, settings: WorkerSettings) -> None:
    """Refuse here what a worker would refuse in its log.

    Raises MissingApiKey, NoCredentials, BatchSettingMissing, PlainHttp and ModelMissing.
    """
    from penstock_producer.job.lanes import has_own_model
    from penstock_workers.lanes.registry import check_provider, make_lane

    if has_own_model(settings.lane):
        make_lane(settings)
    else:
        check_provider(settings, spec.provider)


def _refuse_models_elsewhere(spec: JobSpec, settings: WorkerSettings) -> None:
    """Refuse a fallback, or a rule, to a model that no worker of this command hosts.

    In a lane that hosts models all workers here have one, and documents that go on to another would
    wait for ever. Raises SpecError."""
    from penstock_producer.errors import Problem, SpecError
    from penstock_workers.lanes.registry import served_by

    served, own = served_by(settings), settings.of_lane(settings.lane)
    if served is None or not served.names or (own is not None and own.finds_names_later()):
        return  # a provider's; or what is served is known once the worker is up
    others = dict.fromkeys(spec.fallback or (), "/fallback")
    others |= {one.model: pointer for pointer, one in spec.asked_by_rules if one.model}
    elsewhere = [model for model in others if model not in served.every_name]
    if elsewhere:
        why = f"`penstock run` hosts one model, and it is not {' or '.join(elsewhere)}"
        fix = (
            f"start a worker for each model (penstock worker --lane {settings.lane} --model …) and "
            "submit the job to them, or run the dead letters again: penstock submit --from-job JOB "
            "--where reason=… --model …"
        )
        raise SpecError([Problem("invalid_value", others[elsewhere[0]], why, fix)])


def asks_a_provider(spec: JobSpec) -> bool:
    return spec.asks_a_provider


def sampled_request(request: RunRequest, progress: Progress) -> RunRequest:
    """Return the request for a sample.

    Raises what checking flags, settings, source and folders raises.
    """
    from penstock_cli.run.sample import sampled
    from penstock_producer.settings import ProducerSettings

    assert request.sample is not None
    spec, _ = understood(request)
    files.probe(request.out, request.source)
    progress.note(f"reading {request.source} to take a sample of {count(request.sample)}")
    wait = progress.note if request.waits else None
    with StateFolder.create(request.state).locked(wait):
        small = sampled(
            request,
            request.sample,
            spec,
            StateFolder(request.state.absolute()),
            ProducerSettings.load(),
        )
    progress.say(
        f"a sample, with its results in {small.out}; the same command without --sample goes on "
        "with the rest"
    )
    return small


def with_short_lease(settings: WorkerSettings) -> WorkerSettings:
    """Set a short lease, unless settings choose one.

    On one machine no network delays a renewal, so it shows a dead worker sooner."""
    if "visibility_timeout_s" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"visibility_timeout_s": LOCAL_LEASE_S})


def _with_hooks(settings: WorkerSettings, spec: JobSpec) -> WorkerSettings:
    """Let the workers of this command import what its own command line names."""
    named = [
        path.partition(":")[0] for path in (spec.preprocess, spec.postprocess) if path is not None
    ]
    return (
        settings.model_copy(update={"hook_modules": (*settings.hook_modules, *named)})
        if named
        else settings
    )

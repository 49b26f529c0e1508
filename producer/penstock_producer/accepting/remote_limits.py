"""The operator caps what remote clients may ask for in a job.

Each refusal names the setting behind it. Trusted callers (the command line, and `Producer` with
credentials of the database) have no caps: whatever can write into the database can write any job.
Where submitters choose the tenant themselves it is a label, and caps hold for all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock_producer.accepting.hook_paths import is_allowed
from penstock_producer.errors import Problem, SpecError, seen
from penstock_producer.job.fallback import may_name_a_provider, provider_and_model
from penstock_producer.job.spec import JobSpec, SourceFormatName
from penstock_producer.source_formats import SAFE_FORMATS

__all__ = ["DoorSettings", "RemoteLimits"]

ANY = "*"  # in `doors.tenants` and `doors.urgent_tenants`: whatever tenant a job names, or none


class DoorSettings(BaseModel):
    """The settings `doors.*` of processes that serve remote clients.

    They are set as PENSTOCK_DOORS__MAX_WEIGHT=5.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    # that remote jobs may name; None = all that are configured
    providers: tuple[str, ...] | None = None
    # Whose budgets and shares clients may name who have no API key (Celery's). None = all while
    # there are no keys, and none from the first key on; "*" = all.
    tenants: tuple[str, ...] | None = None
    # whose jobs may be urgent, and so go before all others; "*" = all
    urgent_tenants: tuple[str, ...] = ()
    # only the operator gives a job a larger part of the fleet
    max_weight: Annotated[float, Field(gt=0, le=100)] = 10.0
    # a slot is taken for as long as a request may last
    max_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 10  # each may be paid for
    into: tuple[
        str, ...
        # databases that remote jobs may name in `into`, written alike: their rows go in with our
        # rights
    ] = ()
    # Of their sources. Parquet and Arrow are read by a large native library, in control processes
    # and workers as well, which a hostile file may be made for: the operator says whether files in
    # `source_roots` can be trusted that far.
    formats: tuple[SourceFormatName, ...] = SAFE_FORMATS
    # open jobs that documents may be pushed into: opened here, or any
    push_into: Literal["remote", "any"] = "remote"
    # for one task: reading and checking its source
    submit_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 900.0
    # processes that may die while they handle one task; then the task is set aside
    max_crashes: Annotated[int, Field(ge=1, le=100)] = 3


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """Checks every spec that comes through a remote door."""

    doors: DoorSettings = field(default_factory=DoorSettings)
    hook_modules: Sequence[str] = ()
    # who asks says whose the job is; False where the door knows it, as by an API key
    names_tenants: bool = True

    def check(self, spec: JobSpec, keys_made: Callable[[], bool] = lambda: False) -> None:
        """Raise SpecError, which names each field, its value, and the setting that refuses it.

        ``keys_made`` says whether there are API keys; it is asked where the answer matters.
        """
        problems = [*self._problems(spec), *self._tenant_problems(spec.tenant, keys_made)]
        if problems:
            raise SpecError(problems)

    def check_tenant(self, tenant: str | None, keys_made: Callable[[], bool]) -> None:
        """Raise SpecError where a remote client may not act for this tenant."""
        problems = list(self._tenant_problems(tenant, keys_made))
        if problems:
            raise SpecError(problems)

    def _tenant_problems(
        self, tenant: str | None, keys_made: Callable[[], bool]
    ) -> Iterable[Problem]:
        allowed = self.doors.tenants
        if tenant is None or not self.names_tenants:
            return
        if allowed is None:
            if keys_made():
                why = (
                    "there are API keys, which say whose a job is: submit it over HTTP with a key "
                    "of the tenant, or have "
                )
                yield _problem(
                    "tenant",
                    tenant,
                    why + "the operator name the tenant in the setting doors.tenants",
                )
        elif not {ANY, tenant} & set(allowed):
            yield _problem("tenant", tenant, f"the setting doors.tenants allows {_listed(allowed)}")

    def _problems(self, spec: JobSpec) -> Iterable[Problem]:
        doors = self.doors
        caps = (
            ("weight", spec.weight, "max_weight", doors.max_weight),
            ("timeout_s", spec.timeout_s, "max_timeout_s", doors.max_timeout_s),
            ("max_attempts", spec.max_attempts, "max_attempts", doors.max_attempts),
            ("schema_repairs", spec.schema_repairs, "max_attempts", doors.max_attempts),
        )
        for name, value, setting, cap in caps:
            if value > cap:
                yield _problem(name, value, f"the setting doors.{setting} allows {cap:g} at most")
        if spec.priority == "urgent" and not {ANY, spec.tenant} & set(doors.urgent_tenants):
            allowed = ", ".join(doors.urgent_tenants) or "none"
            yield _problem(
                "priority",
                spec.priority,
                f"the setting doors.urgent_tenants names tenants that may: {allowed}",
            )
        if doors.providers is not None and spec.provider not in doors.providers:
            yield _problem(
                "provider",
                spec.provider,
                f"the setting doors.providers allows {_listed(doors.providers)}",
            )
        if doors.providers is not None and spec.asks_a_provider:
            yield from _fallback_problems(spec.fallback or (), doors.providers)
            for provider, pointer in spec.providers_of_rules.items():
                if provider not in doors.providers:
                    why = f"the setting doors.providers allows {_listed(doors.providers)}"
                    yield _problem(pointer.removeprefix("/"), provider, why)
        if spec.into is not None and spec.into not in doors.into:
            yield _problem(
                "into", spec.into, f"the setting doors.into allows {_listed(doors.into)}"
            )
        if spec.tokenizer is not None:
            yield _problem(
                "tokenizer",
                spec.tokenizer,
                "leave it out: jobs of remote doors name no files of this machine",
            )
        for name, path in (("preprocess", spec.preprocess), ("postprocess", spec.postprocess)):
            if path is not None and not is_allowed(path, self.hook_modules):
                yield _problem(
                    name, path, f"the setting hook_modules allows {_listed(self.hook_modules)}"
                )


def _fallback_problems(models: Sequence[str], providers: Sequence[str]) -> Iterable[Problem]:
    for model in models:
        if may_name_a_provider(model) and provider_and_model(model, providers)[0] is None:
            why = (
                f"the setting doors.providers allows {_listed(providers)}; a model whose name has "
                "a slash stands behind one"
            )
            yield _problem("fallback", model, why)


def _problem(name: str, value: object, why: str) -> Problem:
    return Problem("not_allowed", f"/{name}", f"{seen(value)} is refused at this door", why)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

"""The producer's settings: one frozen object.

They come from flags, `PENSTOCK_*` variables and `penstock.toml`, in that order.

Other roles subclass ``ProducerSettings`` and add fields; nested ones are set as
`PENSTOCK_PROVIDERS__OPENAI__RPM=600`. The only place of the producer that reads the environment.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.exceptions import SettingsError as MalformedVariable

from penstock_ledger import RedisAddress, Waits
from penstock_ledger.redaction import (
    HIDDEN,
    is_secret_name,
    redact,
    remember_url,
    remember_variables,
)
from penstock_producer.errors import SettingsError, seen
from penstock_producer.job.endpoints import refusal
from penstock_producer.job.lanes import DEFAULT_LANE, LANES
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.rows import DEFAULT_MAX_BODY_BYTES, DEFAULT_MAX_LINE_BYTES
from penstock_producer.source_roots import SourceRoots, check_root, overlap
from penstock_producer.storage import check_destination

__all__ = [
    "DoorFiles",
    "ProducerSettings",
    "ProviderFacts",
    "check_url",
    "config_path",
    "refuse_example_password",
    "variable",
]


CONFIG_VARIABLE = "PENSTOCK_CONFIG"
DEFAULT_CONFIG = "penstock.toml"
ENV_PREFIX = "PENSTOCK_"
PLACEHOLDER = "CHANGE_ME"  # where .env.example has no password


class DoorFiles(BaseModel):
    """The settings of the HTTP gateway that every process knows: the place of uploads."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    files: str = "penstock-files"  # folder or s3://bucket/prefix for uploads and what batches write


class ProducerSettings(BaseSettings):
    """The settings of the queue, the database and the sources.

    Make one with ``load()``, which explains what it refuses."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        protected_namespaces=(),
    )

    redis_url: str = "redis://127.0.0.1:6379/0"
    database_url: str = "sqlite:///penstock.db"
    # PostgreSQL only. A process opens no more connections than this, and control and gateway one
    # more that hears of commits; None = 4, and 6 where it also hosts control.
    database_pool: Annotated[int, Field(ge=2, le=100)] | None = None
    database_statement_timeout_s: Annotated[float, Field(ge=0, le=3600)] = 60.0  # 0 = none
    # below the above; 0 = none
    database_lock_timeout_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    # folder or s3://bucket/prefix (gs://, az://) for each finished job's files; None = none
    results_url: str | None = None
    # likewise for images that answers hold; None = results_url
    images_url: str | None = None
    # Seconds for which a submit tries results_url, and the job's table, before it accepts the job;
    # 0 = not at all.
    results_probe_s: Annotated[float, Field(ge=0, le=300)] = 15.0
    # Of a database whose table is a source: how long it may take for one part of the answer; 0 =
    # without end.
    source_query_timeout_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    # Buckets only: results as part objects while a job runs, which go when it ends, or stay. Needs
    # to read, list and delete.
    results_parts: Literal["off", "until_end", "keep"] = "off"
    # None leaves it to AWS_ENDPOINT_URL_S3 and the profile, as boto3 does
    s3_endpoint_url: str | None = None
    max_line_bytes: Annotated[int, Field(ge=1024, le=1024**3)] = DEFAULT_MAX_LINE_BYTES
    # one request, rendered
    max_body_bytes: Annotated[int, Field(ge=1024, le=1024**3)] = DEFAULT_MAX_BODY_BYTES
    # Folders and s3://bucket/prefix that jobs from remote doors (Celery tasks) may read; () = none.
    # See docs/doors.md. Rows of other jobs may name images and sounds there, besides those beside
    # their source.
    source_roots: tuple[str, ...] = ()
    gateway: DoorFiles = Field(default_factory=DoorFiles)
    providers: Mapping[str, ProviderFacts] = Field(default_factory=dict)

    def refused_endpoint(
        self, provider: str, endpoint: str, lane: str = DEFAULT_LANE
    ) -> str | None:
        """Return why jobs of this lane may not send to this path of the provider.

        None when they may.
        """
        known = self.providers.get(provider)
        given = () if known is None else known.endpoints
        extra = {*given, *(LANES[lane].endpoints if lane in LANES else ())}
        kind = "openai" if known is None else known.kind
        return refusal(endpoint, provider, extra, kind)

    def prices(self, provider: str) -> ProviderFacts:
        """Return the facts of one provider; unknown ones where it is not configured."""
        return self.providers.get(provider, ProviderFacts())

    @property
    def private_places(self) -> Mapping[str, str]:
        """Return what belongs to all tenants, by the setting that names it.

        No remote job reads it, whatever `source_roots` says.
        """
        places = {}
        if "files" in self.gateway.model_fields_set:
            places["gateway.files"] = self.gateway.files
        for name, url in (("results_url", self.results_url), ("images_url", self.images_url)):
            if url is not None:
                places[name] = url
        if self.database_url.startswith("sqlite:///"):
            places["database_url"] = self.database_url.removeprefix("sqlite:///").partition("?")[0]
        return {
            name: place if "://" in place else os.path.abspath(place)
            for name, place in places.items()
            if place
        }

    @property
    def readable(self) -> SourceRoots:
        """Return where remote jobs read."""
        places = self.private_places
        ledger = places.get("database_url")
        beside = () if ledger is None else (f"{ledger}-wal", f"{ledger}-shm", f"{ledger}-journal")
        return SourceRoots(self.source_roots, (*places.values(), *beside))

    def refuse_shared_roots(self, state: Path | None = None) -> None:
        """Raise SettingsError where a remote job could read what belongs to other tenants.

        It would read it by its path. For processes that serve remote clients, before they start to.
        ``state`` is the state folder of one that has one.
        """
        places = dict(self.private_places) | (
            {} if state is None else {"the state folder": str(state.absolute())}
        )
        for root in self.source_roots:
            for name, place in places.items():
                if overlap(root, place):
                    raise SettingsError(
                        f"setting source_roots = {seen(root)} is refused: {name} "
                        f"({seen(redact(place))}) lies there, so that jobs of one tenant could "
                        "read what belongs to others. Give source_roots folders or prefixes that "
                        f"hold sources alone, or move {name} elsewhere (docs/gateway-batches.md)"
                    )

    @property
    def writes_parts(self) -> bool:
        """Return whether results go into a bucket while their job runs."""
        return (
            self.results_parts != "off"
            and self.results_url is not None
            and "://" in self.results_url
        )

    @property
    def database_waits(self) -> Waits:
        return Waits(self.database_statement_timeout_s, self.database_lock_timeout_s)

    @classmethod
    def load(cls, **flags: Any) -> Self:
        """Read the settings; flags that are not None win.

        Raises SettingsError naming the setting, value and fix."""
        remember_variables(os.environ)  # before anything is said of them
        config = config_path()
        try:
            loaded = cls(**{name: value for name, value in flags.items() if value is not None})
        except ValidationError as error:
            raise SettingsError(redact("\n".join(_explain(error)))) from None
        except MalformedVariable as error:
            raise SettingsError(
                f"{redact(str(error))}; nested settings are JSON, or one variable per field with "
                "`__`"
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{config}: not valid TOML: {error}; correct that line") from None
        cls._refuse_typos(config)
        for name in cls.model_fields:
            if name.endswith("_url"):
                remember_url(getattr(loaded, name))
        return loaded

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, toml_file=config_path()),
        )

    @field_validator("redis_url", check_fields=False)
    @classmethod
    def _check_redis_url(cls, url: str) -> str:
        refuse_example_password(url)
        _refuse_open_passwords(url)
        RedisAddress.parse(url)
        return url

    @field_validator("database_url", check_fields=False)
    @classmethod
    def _check_database_url(cls, url: str) -> str:
        refuse_example_password(url)
        return _with_scheme(url, ("sqlite", "postgresql", "postgres", "postgresql+psycopg"))

    @field_validator("source_roots", check_fields=False)
    @classmethod
    def _check_source_roots(cls, roots: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_root(root) for root in roots)

    @property
    def images_place(self) -> str | None:
        """Return where images of answers go; None where no place is set."""
        return self.images_url or self.results_url

    @field_validator("results_url", "images_url", check_fields=False)
    @classmethod
    def _check_results_url(cls, url: str | None) -> str | None:
        """Check the place of results now, not when the first job ends.

        A compose file or a chart leaves a variable empty more easily than out.
        """
        return check_destination(url) if url else None

    @field_validator("s3_endpoint_url", check_fields=False)
    @classmethod
    def _check_endpoint(cls, url: str | None) -> str | None:
        return None if url is None else check_url(url, ("http", "https"))

    @classmethod
    def _refuse_typos(cls, config: Path | None) -> None:
        """Raise SettingsError for a misspelt setting, which would silently mean its default.

        Names unlike any setting belong to other roles.
        """
        names = list(cls.model_fields)
        for where, name in _given_names(config):
            close = (
                [] if name in names else difflib.get_close_matches(name, names, n=1, cutoff=0.85)
            )
            if close:
                raise SettingsError(
                    f"{where}: there is no setting {name!r}; did you mean {close[0]!r}?"
                )


def config_path() -> Path | None:
    """Return the settings file: `PENSTOCK_CONFIG`, else `penstock.toml` here, else None.

    Here is the working folder. Raises SettingsError when `PENSTOCK_CONFIG` names no file: a
    misspelt path must not mean the defaults.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise SettingsError(
                f"{CONFIG_VARIABLE}={named!r}: there is no such file; correct the path or unset it"
            )
        return path
    path = Path(DEFAULT_CONFIG)
    return path if path.is_file() else None


def variable(name: str) -> str | None:
    """Return the value of a variable that a source names."""
    return os.environ.get(name)


def _given_names(config: Path | None) -> Iterable[tuple[str, str]]:
    if config is not None:
        for name in tomllib.loads(config.read_text(encoding="utf-8")):
            yield str(config), name
    for variable in os.environ:
        if variable.startswith(ENV_PREFIX) and variable != CONFIG_VARIABLE:
            yield variable, variable.removeprefix(ENV_PREFIX).split("__")[0].lower()


def check_url(url: str, schemes: tuple[str, ...]) -> str:
    """Return ``url`` with a scheme, a host and, where it names one, a port that exists.

    Raises ValueError.
    """
    parts = urlsplit(_with_scheme(url, schemes))
    try:
        port = parts.port
    except ValueError:
        port = 0
    if not parts.hostname or port == 0:
        raise ValueError(
            "name a host, and a port from 1 to 65535 where one is needed, as in "
            f"{schemes[-1]}://host:8000"
        )
    return url


def _with_scheme(url: str, schemes: tuple[str, ...]) -> str:
    if url.partition(":")[0] not in schemes or ":" not in url:
        raise ValueError("start it with " + " or ".join(f"{scheme}://" for scheme in schemes))
    return url


def _explain(error: ValidationError) -> Iterable[str]:
    for detail in error.errors(include_url=False):
        name = ".".join(str(part) for part in detail["loc"])
        variable = ENV_PREFIX + "__".join(str(part) for part in detail["loc"]).upper()
        shown = _shown(name.rpartition(".")[2], detail["input"])
        why = detail["msg"].removeprefix("Value error, ")
        yield (
            f"setting {name} = {shown} is refused: {why} (set {name} in {DEFAULT_CONFIG} or "
            f"{variable})"
        )


def _shown(name: str, value: Any) -> str:
    """Return a refused value without what may be a secret.

    Tables are not shown at all, since a key may be in any of them.
    """
    if is_secret_name(name):
        return HIDDEN
    if isinstance(value, (dict, list, tuple, set)):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, str):
        remember_url(value)
        return seen(redact(value))
    return seen(value)


def refuse_example_password(url: str) -> None:
    """Raise ValueError for the example's password, which is public."""
    if f":{PLACEHOLDER}" in url:
        raise ValueError(
            "this is the example's password: choose your own; `python3 docker/passwords.py` writes "
            "random ones into .env"
        )


def _refuse_open_passwords(url: str) -> None:
    """Raise ValueError for a password with characters that must be escaped in a URL.

    Libraries would take a part of such a password for the port, and repeat it in their message.
    """
    if url.startswith("sentinel"):  # which has a port for each of several hosts
        return
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise ValueError(
            "give a number as the port, and %-encode what is special in user and password"
        ) from None

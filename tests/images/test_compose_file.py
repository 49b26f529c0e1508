"""The compose files: what the specification says of their form, and what we promise of every
service."""

from __future__ import annotations

import json
import re
import runpy
from graphlib import TopologicalSorter
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from images.compose_file import (
    EXAMPLE,
    FILES,
    ROOT,
    Service,
    VariableMissing,
    example_environment,
    raw,
    services,
)
from jsonschema.validators import validator_for

ALL = list(chain.from_iterable(services(file).values() for file in FILES))
PINNED = re.compile(r"^[\w./-]+:v?\d+\.\d+[\w.-]*$")
CLOSING_S = 12  # beyond drain_seconds: a last commit, closing connections, telling Redis (celery_app/ending.py)


def names(service: Service) -> str:
    return service.name


@pytest.fixture(scope="module")
def specification() -> Any:
    """The compose specification's own schema, as a package carries it."""
    found = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    return validator_for(schema := json.loads(found.read_text()))(schema)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_specification_accepts_the_file(file: Path, specification: Any) -> None:
    """Every field exists, and has the type that compose wants."""
    assert [
        f"{error.json_path}: {error.message}" for error in specification.iter_errors(raw(file))
    ] == []
    broken = raw(file) | {"services": {"one": {"image": "x", "read_onli": True}}}
    assert not specification.is_valid(broken), (
        "the schema lets misspelt fields pass: it proves nothing"
    )


def test_every_service_of_a_fleet_is_there() -> None:
    """And each behind the profile that the documentation names."""
    profiles = {service.name: service.profiles for service in ALL}
    assert profiles == {
        "redis": set(),
        "postgres": set(),
        "migrate": set(),
        "control": set(),
        "worker-api": set(),
        "gateway": {"doors"},
        "cli": {"tools"},
        "flower": {"tools"},
        "prometheus": {"monitoring"},
        "grafana": {"monitoring"},
        "simulate": {"demo"},
        "demo": {"demo"},
        "vllm": {"gpu"},
        "worker-gpu": {"gpu"},
        "worker-gpu-hosted": {"gpu-hosted"},
    }


@pytest.mark.parametrize("service", ALL, ids=names)
def test_no_service_can_do_more_than_it_must(service: Service) -> None:
    """Read-only root, no capability, no way to get one, a user that is not root, /tmp in memory."""
    fields = service.fields
    assert fields["read_only"] is True
    assert fields["cap_drop"] == ["ALL"]
    assert fields["security_opt"] == ["no-new-privileges:true"]
    assert int(fields["user"].split(":")[0]) > 0
    assert fields["tmpfs"][0].startswith("/tmp:")
    assert not {"privileged", "network_mode", "pid", "ipc", "cap_add"} & fields.keys()


@pytest.mark.parametrize("service", ALL, ids=names)
def test_logs_are_rotated_and_images_pinned(service: Service) -> None:
    """No log fills a disk, and no pull brings another version."""
    assert service.fields["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert PINNED.match(service.fields["image"]), service.fields["image"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_image_can_be_named_with_its_digest(file: Path) -> None:
    """A variable of .env replaces each image that is pulled, and the base of each that is built
    (S12)."""
    digest = f"registry.example/x:1@sha256:{'0' * 64}"
    variables = set(re.findall(r"\$\{(\w+_IMAGE):-", file.read_text()))
    assert variables <= set(re.findall(r"^#(\w+_IMAGE)=", EXAMPLE.read_text(), re.MULTILINE))
    given = services(file, example_environment() | dict.fromkeys(variables, digest))
    for service in given.values():
        if service.is_ours:
            assert set(service.fields["build"]["args"].values()) == {digest}, service.name
        else:
            assert service.fields["image"] == digest, service.name


@pytest.mark.parametrize("service", ALL, ids=names)
def test_ports_are_open_on_this_machine_only(service: Service) -> None:
    """What is published at all is published on loopback."""
    assert all(port.startswith("127.0.0.1:") for port in service.fields.get("ports", ()))


@pytest.mark.parametrize(
    "service", [one for one in ALL if "PENSTOCK_DRAIN_SECONDS" in one.environment], ids=names
)
def test_a_drain_fits_into_its_grace(service: Service) -> None:
    """Docker kills after stop_grace_period: a service that drains has the time to, and then to
    conclude."""
    if service.argv[3] in ("worker", "control"):
        assert (
            service.seconds("stop_grace_period")
            >= float(service.environment["PENSTOCK_DRAIN_SECONDS"]) + CLOSING_S
        )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_without_passwords_nothing_starts(file: Path) -> None:
    """The refusal says what to do; the example of an environment has every variable that is
    insisted on."""
    assert services(file)
    for name in ("REDIS_PASSWORD", "POSTGRES_PASSWORD"):
        with pytest.raises(VariableMissing, match=rf"{name}: run python3 docker/passwords\.py"):
            services(file, example_environment() | {name: ""})


def test_the_example_has_no_password() -> None:
    """Placeholders of the example are refused, and the command that fills them leaves none and
    repeats none (B26)."""
    settings = [
        line for line in EXAMPLE.read_text().splitlines() if "PASSWORD=" in line or "AUTH=" in line
    ]
    assert len(settings) == 4
    assert all(line.endswith("CHANGE_ME") for line in settings)
    made = runpy.run_path(str(ROOT / "docker" / "passwords.py"))["filled"]("\n".join(settings))
    passwords = re.findall(r"[0-9a-f]{48}", made)
    assert len(set(passwords)) == 4
    assert "CHANGE_ME" not in made


@pytest.mark.parametrize("service", ALL, ids=names)
def test_keys_and_passwords_go_where_they_are_needed(service: Service) -> None:
    """The provider's key goes to those who ask the provider, and no password is an argument of a
    process (B26)."""
    secret = {
        "REDIS_PASSWORD": "r-canary",
        "POSTGRES_PASSWORD": "p-canary",
        "PROVIDER_API_KEY": "k-canary",
    }
    given = services(ROOT / service.file, example_environment() | secret)[service.name]
    assert not [word for word in given.argv if "-canary" in word]
    assert ("k-canary" in given.environment.values()) is (service.name == "worker-api")


def test_everything_that_is_mounted_is_in_the_repository() -> None:
    """Docker makes an empty folder of a file that is not there, and the service starts with
    nothing."""
    users = {"data", "model"}  # the user's own folders
    mounted = {path for service in ALL for path in service.bind_sources() if path.name not in users}
    assert len(mounted) >= 5
    assert sorted(path for path in mounted if not path.exists()) == []


def test_both_files_give_workers_the_same_servers() -> None:
    """The GPU's file repeats the addresses, because anchors end with their file."""
    one, other = (
        next(s.environment for s in ALL if s.name == name) for name in ("worker-api", "worker-gpu")
    )
    shared = [name for name in other if not name.startswith("PENSTOCK_GPU__")]
    assert {name: other[name] for name in shared} == {name: one[name] for name in shared}


def dependencies(service: Service) -> dict[str, str]:
    """What a service waits for, and until when."""
    found = service.fields.get("depends_on", {})
    named = (
        {name: {"condition": "service_started"} for name in found}
        if isinstance(found, list)
        else found
    )
    return {name: waited["condition"] for name, waited in named.items()}


@pytest.mark.parametrize("files", [FILES[:1], FILES], ids=["alone", "with the GPU's"])
def test_what_is_waited_for_comes(files: tuple[Path, ...]) -> None:
    """Each dependency is there under every profile that starts its dependant, and can reach the
    state that is waited for."""
    together = {name: service for file in files for name, service in services(file).items()}
    assert sum(len(dependencies(service)) for service in together.values()) >= 15
    for service in together.values():
        for name, condition in dependencies(service).items():
            other = together[name]
            assert not other.profiles or (
                service.profiles and service.profiles <= other.profiles
            ), (service.name, name)
            if condition == "service_healthy":
                assert "healthcheck" in other.fields, f"{name} never becomes healthy"
            elif condition == "service_completed_successfully":
                assert other.fields["restart"] == "no", (
                    f"{name} is started again and never completed"
                )
            else:
                assert condition == "service_started"
    order = TopologicalSorter({name: dependencies(service) for name, service in together.items()})
    assert next(iter(order.static_order()))  # raises CycleError


@pytest.mark.parametrize("service", [one for one in ALL if one.is_ours], ids=names)
def test_nobody_starts_on_a_database_without_tables(service: Service) -> None:
    """A service that has the database's address waits for the migration, which waits for the
    database alone."""
    waited = dependencies(service)
    if service.name == "migrate":
        assert waited == {"postgres": "service_healthy"}
    elif "PENSTOCK_DATABASE_URL" in service.environment:
        assert waited["migrate"] == "service_completed_successfully"
        assert waited["redis"] == waited["postgres"] == "service_healthy"


def test_one_version_of_vllm_everywhere() -> None:
    """The chart's sidecar, the compose file's server and the base of our own GPU image are of one
    release."""
    chart = yaml.safe_load((ROOT / "helm" / "penstock" / "values.yaml").read_text())["vllmImage"]
    (server,) = (one.fields["image"] for one in ALL if one.name == "vllm")
    (base,) = re.findall(
        r"^ARG VLLM_IMAGE=(\S+)$", (ROOT / "docker" / "Dockerfile.gpu").read_text(), re.MULTILINE
    )
    assert server == base == f"{chart['repository']}:{chart['tag']}"


def test_prometheus_asks_every_service_that_has_figures() -> None:
    """The scrape configuration names each service with a metrics port, and that port."""
    config = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    roles = {
        one.name
        for one in ALL
        if one.is_ours
        and one.argv[2:4]
        in (["penstock", "worker"], ["penstock", "control"], ["penstock", "gateway"])
    }
    assert set(found["names"]) == roles
    assert {one.environment["PENSTOCK_METRICS_PORT"] for one in ALL if one.name in roles} == {
        str(found["port"])
    }
    mounts = [volume for one in ALL if one.name == "prometheus" for volume in one.fields["volumes"]]
    assert all(any(f":{path}:" in mount for mount in mounts) for path in config["rule_files"])

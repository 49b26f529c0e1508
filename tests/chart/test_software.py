"""The chart says nothing to the software that the software does not understand."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from chart.conftest import EXAMPLES, FLEETS, ROOT, Render
from chart.pods import containers, env, pods
from flower import options as flower_options
from pydantic import BaseModel
from tornado.options import options as tornado_options
from typer.main import get_command

from penstock_cli.main import command_line
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import DEFAULT_PROVIDER, WorkerSettings

OURS = ("penstock:", "penstock-gpu:")
SECRETS = {
    "PENSTOCK_REDIS_URL": "redis://:secret@redis:6379/0",
    "PENSTOCK_DATABASE_URL": "postgresql+psycopg://penstock:secret@postgres/penstock",
}
ALL_ON = {"flower": {"enabled": True, "auth": {"existingSecret": "flower"}}}


def _our_containers(render: Render, name: str) -> list[dict[str, Any]]:
    release = render(name, ALL_ON if name in FLEETS else {})
    found = [found for _, spec in pods(release) for found in containers(spec)]
    ours = [found for found in found if found["image"].startswith(OURS) and "command" not in found]
    assert len(ours) >= (3 if name in FLEETS else 1)
    return ours


def _is_setting(variable: str) -> bool:
    name, _, nested = variable.removeprefix("PENSTOCK_").lower().partition("__")
    nests: dict[str, type[BaseModel]] = {"gpu": GpuSettings, "embed": EmbedSettings}
    inner = nests.get(name)
    if nested:
        return inner is not None and nested in inner.model_fields
    return name in WorkerSettings.model_fields or name == "config"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_variable_is_a_setting(name: str, render: Render) -> None:
    """Each PENSTOCK_* variable is one that WorkerSettings reads."""
    for found in _our_containers(render, name):
        unknown = {
            var for var in env(found) if var.startswith("PENSTOCK_") and not _is_setting(var)
        }
        assert unknown == set(), found["args"]


@pytest.mark.parametrize("name", FLEETS)
def test_settings_load_as_rendered(
    name: str, render: Render, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Variables and penstock.toml load, and mean what the values said; each provider's key is in
    its variable."""
    release = render(name, ALL_ON)
    config = tmp_path / "penstock.toml"
    config.write_text(release.one("ConfigMap", "fleet-penstock")["data"]["penstock.toml"], "utf-8")
    workers = [found for found in _our_containers(render, name) if found["args"][0] == "worker"]
    assert workers
    for found in workers:
        variables = env(found)
        for variable in [name for name in os.environ if name.startswith("PENSTOCK_")]:
            monkeypatch.delenv(variable)
        for variable, value in variables.items():
            monkeypatch.setenv(
                variable, SECRETS.get(variable) or (value if isinstance(value, str) else "key")
            )
        monkeypatch.setenv("PENSTOCK_CONFIG", str(config))
        settings = WorkerSettings.load(lane=found["args"][2])
        assert settings.redis_url == SECRETS["PENSTOCK_REDIS_URL"]
        assert settings.drain_seconds == float(variables["PENSTOCK_DRAIN_SECONDS"])
        # a worker that hosts vLLM asks it, once it is up
        by_engine = settings.gpu.suitable_concurrency()
        assert settings.concurrency == int(variables.get("PENSTOCK_CONCURRENCY", by_engine))
        assert settings.control is False
        if settings.lane == "api":
            assert DEFAULT_PROVIDER in settings.providers  # what jobs use that name none
            assert {provider.api_key(name) for name, provider in settings.providers.items()} == {
                "key"
            }
        if settings.lane == "gpu" and "PENSTOCK_GPU__UPSTREAM_URL" not in variables:
            assert settings.gpu.model is not None
        if settings.lane == "embed":
            assert settings.embed.model == "/models/all-MiniLM-L6-v2"


def test_numbers_reach_the_engine_as_they_are(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helm reads every number as a float; two GPUs must not become 2.0, nor a million tokens
    1e+06."""
    changes = {
        "workerPools": {
            "gpu": {"vllm": {"args": {"tensor_parallel_size": 2, "max_model_len": 1000000}}}
        }
    }
    found = next(found for found in _gpu_workers(render, changes))
    monkeypatch.setenv("PENSTOCK_GPU__ENGINE", env(found)["PENSTOCK_GPU__ENGINE"])
    engine = WorkerSettings.load(lane="gpu").gpu.engine
    assert [repr(engine[name]) for name in ("tensor_parallel_size", "max_model_len")] == [
        "2",
        "1000000",
    ]


def _gpu_workers(render: Render, changes: dict[str, Any]) -> list[dict[str, Any]]:
    found = [found for _, spec in pods(render("gpu", changes)) for found in containers(spec)]
    return [found for found in found if found.get("args") == ["worker", "--lane", "gpu"]]


def test_nested_settings_are_toml(render: Render) -> None:
    """Maps, lists, quotes and large numbers of `settings` survive the way into penstock.toml."""
    given = {
        "window": 1000000,
        "hook_modules": ["a.b", "c"],
        "embed": {"batch_items": 64, "matryoshka": True},
        "results_url": 's3://b/"q"/é',
    }
    text = render("minimal", {"settings": given}).one("ConfigMap", "fleet-penstock")["data"][
        "penstock.toml"
    ]
    parsed = tomllib.loads(text)
    assert {name: parsed[name] for name in given} == given


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_command_parses(name: str, render: Render) -> None:
    """What containers run is a command of `penstock`, with flags that it has."""
    group: Any = get_command(command_line())
    for found in _our_containers(render, name):
        command, *arguments = found["args"]
        group.commands[command].make_context(command, list(arguments))


@pytest.mark.parametrize("name", FLEETS)
def test_probes_are_programs_of_ours(name: str, render: Render) -> None:
    """Probes run a console script of the project; none asks Redis, so no outage of it restarts
    anything."""
    scripts = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
    for found in _our_containers(render, name):
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if found["args"][0] in ("worker", "control"):
                program, *arguments = found[kind]["exec"]["command"]
                assert program in scripts
                assert (
                    arguments[0]
                    == {
                        "startupProbe": "started",
                        "readinessProbe": "ready",
                        "livenessProbe": "alive",
                    }[kind]
                )


def test_flowers_variables_are_options_of_flower(render: Render) -> None:
    """Each FLOWER_* variable is an option that this version of Flower has."""
    assert flower_options.default_options is not None
    (flower,) = (
        found for found in _our_containers(render, "minimal") if found["args"] == ["flower"]
    )
    given = {
        name.removeprefix("FLOWER_").lower() for name in env(flower) if name.startswith("FLOWER_")
    }
    assert given == {"address", "port", "basic_auth"}
    assert all(name in tornado_options for name in given)

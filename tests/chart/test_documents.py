"""What is written about the chart is what the chart does."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import golden, helm_library, values_table
from chart.conftest import CHART, EXAMPLES, ROOT, Render, example

from penstock_workers.settings import ProviderSettings, WorkerSettings
from tools.version import PLACES, found, semantic, write

VALUES = (CHART / "values.yaml").read_text("utf-8")
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))


def test_manifests_change_in_review(render: Render) -> None:
    """The render of the smallest installation is the one in golden/; `make chart` renews it."""
    rendered = golden.text(render(golden.EXAMPLE))
    assert rendered == golden.PATH.read_text("utf-8"), "look at the diff after `make chart`"


def test_every_value_is_described() -> None:
    """Each key of values.yaml that has a value of its own has its comment."""
    found = list(values_table.keys(VALUES))
    assert len(found) > 150
    assert [key.path for key in found if key.is_leaf and not key.comment] == []


def test_the_table_is_that_of_todays_values() -> None:
    """README.md's table is generated; `make chart` renews it."""
    readme = (CHART / "README.md").read_text("utf-8")
    assert values_table.with_table(readme, VALUES) == readme


def _resolve(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return SCHEMA["$defs"][reference.removeprefix("#/$defs/")] if reference else schema


def test_every_value_is_in_the_schema() -> None:
    """Each key is named there, or stands below a map whose names are the user's."""
    for key in values_table.keys(VALUES):
        schema = SCHEMA
        for part in key.path.split("."):
            more = schema.get("additionalProperties")
            schema = _resolve(
                schema.get("properties", {}).get(part) or (more if isinstance(more, dict) else {})
            )
            assert schema, key.path


def _objects(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield path, schema
        for name, part in schema.items():
            yield from _objects(part, f"{path}/{name}")
    elif isinstance(schema, list):
        for part in schema:
            yield from _objects(part, path)


def test_no_map_takes_any_key() -> None:
    """Each object of the schema names its keys and refuses others, or says why its names are
    free."""
    found = list(_objects(SCHEMA))
    assert len(found) > 40
    for path, schema in found:
        named = schema.get("additionalProperties") is False
        typed = "propertyNames" in schema and "additionalProperties" in schema
        assert named or typed or schema.get("description", "").startswith("free:"), path


def test_settings_that_can_be_given_are_settings() -> None:
    """The schema names the workers' settings and their providers' fields: all of them, and no
    others."""
    names = set(SCHEMA["$defs"]["settings"]["propertyNames"]["enum"])
    assert names == set(WorkerSettings.model_fields), "$defs.settings of values.schema.json"
    fields = set(SCHEMA["$defs"]["provider"]["properties"]) - {"apiKey"}
    assert fields == set(ProviderSettings.model_fields) - {"api_key_env"}


def test_versions_are_the_projects() -> None:
    """Chart, images and compose files are released together; `make version` writes them all."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for place in PLACES:
        assert set(found(*place)) == {version}, place
    assert chart["version"] == semantic(version)
    assert f"## {version.partition('.dev')[0]}" in (CHART / "UPGRADE.md").read_text()
    assert "dependencies" not in chart


@pytest.mark.parametrize(
    ("version", "of_helm"),
    [("0.1.0", "0.1.0"), ("0.2.0.dev0", "0.2.0-dev.0"), ("1.12.3", "1.12.3")],
)
def test_a_version_is_also_one_of_helms(version: str, of_helm: str) -> None:
    """Helm takes semantic versions alone."""
    assert semantic(version) == of_helm


@pytest.mark.parametrize("version", ["", "v0.1.0", "0.1", "0.1.0rc1", "0.1.0\n", "$(id)"])
def test_what_is_no_version_is_refused(version: str) -> None:
    """Before anything is written."""
    before = {file: (ROOT / file).read_bytes() for file, _ in PLACES}
    with pytest.raises(ValueError, match="is refused: write"):
        write(version)
    assert {file: (ROOT / file).read_bytes() for file, _ in PLACES} == before


def test_what_a_hub_shows_is_true(render: Render) -> None:
    """The images of other projects that the chart's annotations name are those of its values, and
    its licence is the project's."""
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    shown = {one["image"] for one in yaml.safe_load(annotations["artifacthub.io/images"])}
    values = yaml.safe_load(VALUES)
    upstream = [values["vllmImage"], values["redis"]["image"], values["postgres"]["image"]]
    assert shown == {f"{image['repository']}:{image['tag']}" for image in upstream}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert annotations["artifacthub.io/license"] == project["license"]


def test_a_package_is_the_chart(render: Render, tmp_path: Path) -> None:
    """`helm package` makes an archive of all its files, which renders what the folder renders."""
    archive = Path(helm_library.package(CHART, tmp_path))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert archive.name == f"penstock-{version}.tgz"
    with tarfile.open(archive) as packed:
        held = {name.removeprefix("penstock/") for name in packed.getnames()}
        packed.extractall(tmp_path, filter="data")
    assert held == {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    ours = helm_library.render(tmp_path / "penstock", example("karpenter")).manifests
    assert ours == render("karpenter").manifests


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_those_of_the_page(name: str) -> None:
    """docs/kubernetes.md names each example."""
    assert f"examples/{name}.yaml" in (ROOT / "docs" / "kubernetes.md").read_text("utf-8")


def test_values_that_pages_name_exist() -> None:
    """Every `--set key=` of the chart's pages is a key of the schema."""
    pages = "".join(
        page.read_text("utf-8")
        for page in (
            ROOT / "docs" / "kubernetes.md",
            *CHART.glob("*.md"),
            *CHART.glob("templates/*.tpl"),
        )
    )
    named = set(re.findall(r"--set (?:'|\")?([\w.]+)=", pages))
    assert len(named) >= 3
    for path in named:
        schema = SCHEMA
        for part in path.split("."):
            more = schema.get("additionalProperties")
            schema = _resolve(
                schema.get("properties", {}).get(part) or (more if isinstance(more, dict) else {})
            )
        assert schema, path

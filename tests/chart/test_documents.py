"""What is written about the chart is what the chart does."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from chart import golden, helm_library, values_schema, values_table
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
    """Each key of values.yaml has its comment, which stands as far to the right as the key."""
    found = list(values_table.keys(VALUES))
    assert len(found) > 250
    assert [key.path for key in found if not key.comment] == []
    lines = VALUES.splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines]
    assert [
        line
        for line, below, here, there in zip(lines, lines[1:], indents, indents[1:], strict=False)
        if line.lstrip().startswith("#") and below and here != there
    ] == []


def test_the_table_is_that_of_todays_values() -> None:
    """README.md's table is generated; `make chart` renews it."""
    readme = (CHART / "README.md").read_text("utf-8")
    assert values_table.with_table(readme, VALUES) == readme


def test_the_example_of_digests_names_images_by_them(render: Render) -> None:
    """The values that README.md shows lead to these images in every pod that has them."""
    (shown,) = re.findall(
        r"^```yaml\n(.*?)^```", (CHART / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    values = yaml.safe_load(shown)
    named = {
        f"{values['image']['repository']}@{values['image']['digest']}",
        f"redis@{values['redis']['image']['digest']}",
    }
    images = set(re.findall(r'image: "?([^\s"]+)', golden.text(render("minimal", values))))
    assert named < images
    assert {image for image in images - named if not image.startswith("postgres:")} == set()


def test_links_hold_in_a_package() -> None:
    """What the chart's pages link to is in the chart: its archive has nothing else."""
    for page in CHART.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            assert (CHART / link).resolve().is_relative_to(CHART), link
            assert (CHART / link).is_file(), link


def test_an_editor_shows_what_each_value_means() -> None:
    """The schema has the comments and defaults of values.yaml, and those of settings; `make chart`
    renews it."""
    written = (CHART / "values.schema.json").read_text("utf-8")
    completed = values_schema.text(values_schema.completed(SCHEMA, VALUES))
    assert completed == written, "look at the diff after `make chart`"


def test_every_value_is_in_the_schema() -> None:
    """Each key is named there, or stands below a map whose names are the user's, and its default is
    one that the schema takes."""
    for key in values_table.keys(VALUES):
        assert values_schema.place_of(SCHEMA, key.path)[0] is not None, key.path
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(yaml.safe_load(VALUES))


def test_the_schema_describes_all_that_it_takes() -> None:
    """An editor completes a key, and shows what it means: of each of them, in every map."""
    found = list(_named(SCHEMA, "")) + list(_named({"properties": SCHEMA["$defs"]}, "$defs"))
    assert len(found) > 300
    assert [
        path for path, schema in found if path.count("/") > 1 and not schema.get("description")
    ] == []


def _named(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, part in schema.get("properties", {}).items():
        yield f"{path}/{name}", part
        yield from _named(part, f"{path}/{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from _named(schema[name], f"{path}/{name}")


def test_templates_read_what_there_is() -> None:
    """Each value that a template reads is in the schema, and each of values.yaml is read by one."""
    templates = "".join(
        path.read_text("utf-8") for path in (CHART / "templates").rglob("*") if path.is_file()
    )
    read = set(re.findall(r"\.Values\.([a-zA-Z][\w.]*\w)", templates))
    assert len(read) > 100
    places = {path: values_schema.place_of(SCHEMA, path) for path in read}
    assert [path for path, (schema, _) in places.items() if schema is None] == []
    words = set(re.findall(r"\.(\w+)", templates)) | set(re.findall(r"\"(\w+)\"", templates))
    keys = [key.path for key in values_table.keys(VALUES)]
    assert [path for path in keys if path.rpartition(".")[2] not in words] == []


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
        assert named or typed or schema.get("$comment", "").startswith("free:"), path


def test_settings_that_can_be_given_are_settings() -> None:
    """The schema names the workers' settings and their providers' fields: all of them, and no
    others."""
    names = set(SCHEMA["$defs"]["settings"]["properties"])
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
    assert archive.name == f"penstock-{semantic(version)}.tgz"
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
        assert values_schema.place_of(SCHEMA, path)[0] is not None, path

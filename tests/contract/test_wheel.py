"""The wheel that users install holds everything that the checkout has, and works without the
checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_every_file_of_every_package_is_in_the_wheel(wheel: Path) -> None:
    """Scripts in Lua, migrations and type markers travel with the code."""
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(file.relative_to(folder.parent))
        for folder in (ROOT / "penstock", *ROOT.glob("*/penstock_*"))
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert len([name for name in wanted if name.endswith(".lua")]) >= 10
    assert any("migrations/versions" in name for name in wanted)
    assert wanted <= packed


def test_the_programs_that_make_files_are_not_in_the_wheel(wheel: Path) -> None:
    """What makes alert rules and dashboards is for a checkout: the wheel holds Penstock's packages
    and its own metadata only."""
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {file.name for file in (ROOT / "tools/monitoring").glob("*.py")} >= {
        "alerts.py",
        "dashboards.py",
        "write.py",
    }
    assert not [top for top in tops if not top.startswith("penstock")]
    metrics = {
        name
        for name in zipfile.ZipFile(wheel).namelist()
        if name.startswith("penstock_workers/metrics/")
    }
    assert not {
        name for name in metrics if name.endswith(("alerts.py", "dashboards.py", "write.py"))
    }


def test_the_wheel_works_without_its_sources(wheel: Path, tmp_path: Path) -> None:
    """A producer from the unpacked wheel migrates a database and accepts a job, with no checkout in
    reach."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "one"}\n')
    code = (
        "import penstock_producer as p; assert p.__file__.startswith({site!r}), p.__file__\n"
        "with p.Producer(database_url='sqlite:///jobs.db') as producer:\n"
        "    job = producer.submit('docs.jsonl', {{'prompt': 'Summarise: {{text}}', 'model': "
        "'m'}})\n"
        "    print(producer.status(job.job_id).job.total)\n"
    ).format(site=str(tmp_path / "site"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout.strip(), ran.returncode) == ("1", 0), ran.stderr

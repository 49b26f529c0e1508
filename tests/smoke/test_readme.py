"""The commands of the README and of the two pages that go on from it, run as they stand.

Only addresses are exchanged: what lies elsewhere has a stand-in on loopback."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator

import pytest
import yaml
from fleet import until
from pages import (
    ROOT,
    TIME_S,
    Place,
    blocks,
    commands_of,
    parse,
    penstock,
    reader,
    refuse_unknown_extras,
)
from servers import Postgres, S3Server

from penstock_simulate import SimulatorConfig
from penstock_simulate.answers.faults import Fates, Poison

README = (ROOT / "README.md").read_text("utf-8")
# in the order in which a reader comes by
PAGES = ("README.md", "docs/serve.md", "docs/fleet.md")
MOST_LINES = 120  # of the README: what is read before the first try
DEMO_DOCS = 20
DEMO_LUCK = Fates(SimulatorConfig(seed=7, poison_rate=0.004))  # examples/demo.py has the same
DEAD = "locale.setlocale"  # a document of the demo that the simulated provider never answers


def code(language: str) -> list[str]:
    return [block for page in PAGES for block in blocks((ROOT / page).read_text("utf-8"), language)]


def commands() -> list[str]:
    """Every command of a console block, and those that the text tells to type."""
    text = "\n".join((ROOT / page).read_text("utf-8") for page in PAGES)
    typed = [one.command for page in PAGES for one in commands_of(page)]
    return typed + re.findall(r"`(pip install [^`]+)`", text)


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres, s3_server: S3Server
) -> Iterator[Place]:
    with reader(tmp_path_factory.mktemp("reader"), postgres_server, s3_server) as one:
        yield one


# -- what each command must do ---------------------------------------------------------------------


def of_make(_: Place, command: str) -> None:
    target = shlex.split(command, comments=True)[1]
    assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def of_pip(_: Place, command: str) -> None:
    """The project itself, from a clone, with extras that exist: nothing is published yet."""
    found = re.fullmatch(r"pip install '\.\[([a-z0-9,]+)\]'", command.partition("#")[0].strip())
    assert found, f"{command}: give the clone ('.[…]'), as no package is published"
    refuse_unknown_extras(command)


def succeeds(place: Place, command: str) -> None:
    status, told = place.run(penstock(place.here(command)))
    assert status == 0, f"{command}\n{told}"
    if " submit s3:" in command:
        found = re.search(r"job_\w+|[0-9a-f]{32}|[0-9A-Z]{26}", told)
        assert found, told
        place.job = found[0]


def looks(place: Place, command: str) -> None:
    """The doctor says what it thinks of the stand-ins, which have no passwords."""
    status, told = place.run(penstock(place.here(command)))
    assert status in (0, 1), told
    assert "redis" in told.lower()
    assert "Traceback" not in told


def keeps_running(place: Place, command: str) -> None:
    process = place.start(penstock(place.here(command)))
    place.running.append(process)
    assert process.poll() is None


def serves(place: Place, command: str) -> None:
    """It accepts work; the example in Python then asks it."""
    keeps_running(place, command)
    health = place.here("http://127.0.0.1:8080/health")
    until(lambda: is_there(health), TIME_S, "the doors accept work")


def is_there(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
        return bool(answer.status == 200)
    return False


def follows(place: Place, command: str) -> None:
    status, told = place.run(penstock(command.replace("JOB", place.job)))
    assert status == 0, told
    assert "20" in told


def parses(_: Place, command: str) -> None:
    """A GPU and a model are not here: the command line takes it all the same."""
    parse(command)


def exports(place: Place, command: str) -> None:
    for pair in shlex.split(command)[1:]:
        name, _, value = place.here(pair).partition("=")
        place.environment[name] = value


def of_a_clone(_: Place, command: str) -> None:
    """The profiles that it names are there."""
    words = shlex.split(command, comments=True)
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    known = {profile for service in services for profile in service.get("profiles", ())}
    assert {words[at + 1] for at, word in enumerate(words) if word == "--profile"} <= known


def of_the_example(place: Place, command: str) -> None:
    """Run beside a copy of the example, which then has passwords."""
    program = shlex.split(command, comments=True)[1]
    (place.folder / program).parent.mkdir()
    for name in (".env.example", program):
        shutil.copy(ROOT / name, place.folder / name)
    status, told = place.run([sys.executable, program])
    assert status == 0, told
    assert "CHANGE_ME" not in (place.folder / ".env").read_text()


def of_the_chart(_: Place, command: str) -> None:
    """Rendered by tests/chart/test_following_the_docs.py; the Secret is the one that the example
    asks for."""
    if command.startswith("kubectl"):
        values = yaml.safe_load((ROOT / "helm/penstock/examples/minimal.yaml").read_text())
        key = values["providers"]["default"]["apiKey"]
        assert f"generic {key['existingSecret']} --from-literal={key['key']}=" in command


def of_the_demo(place: Place, command: str) -> None:
    if not (place.folder / "demo").exists():
        run_demo(place)
    status, told = place.run(penstock(command))
    assert status == 0, f"{command}\n{told}"
    assert DEAD in told or "replay" in command, told
    if "replay" in command:
        run_demo(place)
        again = place.run(penstock("penstock dlq list demo --state demo/results/.penstock"))[1]
        assert "context_overflow" not in again, again


def run_demo(place: Place) -> str:
    """`make demo` with few of its documents, among them the one that the README shows."""
    documents = place.folder / "demo" / f"documents-{DEMO_DOCS}.jsonl"
    if not documents.exists():
        documents.parent.mkdir()
        whole = place.folder / "corpus.jsonl"
        subprocess.run(
            [sys.executable, ROOT / "examples/corpus.py", whole], check=True, capture_output=True
        )
        lines = whole.read_text().splitlines(keepends=True)
        documents.write_text(
            "".join(sorted(lines, key=lambda line: -_is_shown(json.loads(line)["id"]))[:DEMO_DOCS])
        )
    status, told = place.run(
        [sys.executable, str(ROOT / "examples/demo.py"), "--out", "demo", "--docs", str(DEMO_DOCS)]
    )
    assert status == 0, told
    return told


def _is_shown(document: str) -> bool:
    """Whether the README looks at it, or tries it again: those with too long a context, at the
    demo's provider."""
    return document == DEAD or DEMO_LUCK.poison(document) is Poison.CONTEXT


FATES: dict[str, Callable[[Place, str], None]] = {
    r"make ": of_make,
    r"pip install ": of_pip,
    r"penstock dlq ": of_the_demo,
    r"penstock run ": succeeds,
    r"export ": exports,
    r"penstock migrate": succeeds,
    r"penstock doctor": looks,
    r"penstock (worker --lane api|control)": keeps_running,
    r"penstock serve": serves,
    r"penstock submit s3:": succeeds,
    r"penstock status": follows,
    r"penstock (worker|submit).*--lane gpu": parses,
    r"python3 docker/": of_the_example,
    r"docker compose ": of_a_clone,
    r"(kubectl|helm) ": of_the_chart,
}


@pytest.mark.parametrize(
    "command", commands(), ids=lambda command: command.partition("#")[0].strip()[:60]
)
def test_a_command_of_the_readme(place: Place, command: str) -> None:
    """It does what the README says, in the README's order, with nothing added but the stand-ins'
    addresses (D11)."""
    fates = [fate for pattern, fate in FATES.items() if re.match(pattern, command)]
    assert fates, f"no check for this command: {command}"
    fates[0](place, command)


@pytest.mark.parametrize("what", ["penstock.run(", "batches.create", "Producer("])
def test_the_python_of_the_readme_runs(place: Place, what: str) -> None:
    """The call from a notebook; OpenAI's client at `penstock serve`; the producer's example, with a
    file in a bucket and an open job (D11)."""
    (block,) = [block for block in code("python") if what in block]
    (place.folder / "pasted.py").write_text(place.here(block))
    status, told = place.run([sys.executable, "pasted.py"])
    assert status == 0, told
    assert "b9" in told or "batches" not in what, "the answers are printed"


def test_the_readme_is_short() -> None:
    """What is read before the first try is a page and a half, and it ends in five links."""
    assert len(README.splitlines()) <= MOST_LINES
    assert README.partition("## Read on")[2].count("\n- ") == 5


def test_pages_that_the_readme_names_are_there() -> None:
    """A link leads somewhere."""
    links = {link.partition("#")[0] for link in re.findall(r"\]\((?!http)([^)]+)\)", README)}
    missing = sorted(link for link in links if not (ROOT / link).exists())
    assert missing == []


def test_the_worker_is_told_to_end(place: Place) -> None:
    """What the README starts in the background ends by SIGTERM, with status 0."""
    for process in place.running:
        process.send_signal(signal.SIGTERM)
    until(
        lambda: all(process.poll() is not None for process in place.running),
        TIME_S,
        "they have ended",
    )
    assert [process.returncode for process in place.running] == [0] * len(place.running)
    place.running.clear()

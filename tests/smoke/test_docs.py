"""Every command of docs/, typed as it stands on a machine with a fleet; `TABLE` says what each must
do, which other test runs it, or why nothing here can.

The README and the pages that go on from it are test_readme.py's.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from fleet import until
from pages import (
    ROOT,
    TIME_S,
    Place,
    Typed,
    blocks,
    commands_of,
    missing,
    parse,
    penstock,
    reader,
    refuse_unknown_extras,
)
from servers import Postgres, S3Server

OF_THE_README = ("docs/serve.md", "docs/fleet.md")
PAGES = [
    page
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if (page := path.relative_to(ROOT).as_posix()) not in OF_THE_README
]
COMMANDS = [one for page in PAGES for one in commands_of(page)]
BARE = ("docs/tour.md", "docs/plan.md")  # which begin in an empty folder
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


# -- the machine of the reader ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres, s3_server: S3Server
) -> Iterator[Place]:
    """A fleet that works, and the jobs that pages name."""
    with reader(tmp_path_factory.mktemp("docs"), postgres_server, s3_server) as place:
        _more_files(place.folder)
        typed(place, "penstock migrate")
        for process in ("control", "worker --lane api -c 16"):
            place.running.append(place.start(penstock(f"penstock {process}")))
        for job in ("tickets", "import", "night"):
            typed(place, f"penstock submit scored.jsonl --job {job} {SCORED}")
        for job in ("tickets", "import", "night"):
            typed(place, f"penstock status {job} --watch")
        yield place


SCORED = '--prompt "Score: {text}" --model m --response-schema score.json --max-prompt-tokens 200'


def _more_files(folder: Path) -> None:
    """Write what pages read beyond the README's files."""
    rows = [{"id": f"d{n}", "text": f"The printer is on fire, part {n}."} for n in range(10)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("docs", "reviews", "documents", "other"):
        (folder / f"{name}.jsonl").write_text(lines)
    (folder / "scored.jsonl").write_text(lines + json.dumps({"id": "long", "text": "x " * 999}))
    score = {"type": "number", "minimum": 0, "maximum": 1}
    schema = {"type": "object", "properties": {"score": score}, "required": ["score"]}
    (folder / "score.json").write_text(json.dumps(schema))
    (folder / "reviews.csv").write_text("id,text\n1,It is good.\n2,It is not.\n")
    shutil.copy(folder / "batch.jsonl", folder / "night.jsonl")
    (folder / "photos").mkdir()
    for name in ("photos/a.png", "photo.png", "detail.png"):
        (folder / name).write_bytes(base64.b64decode(PIXEL))
    product = {"id": "p1", "photo": "photo.png", "detail": "detail.png"}
    (folder / "products.jsonl").write_text(json.dumps(product) + "\n")
    pair = {"query": "q", "documents": ["a", "b"], "top_n": 1}
    line = {"custom_id": "q1", "method": "POST", "url": "/v1/rerank", "body": pair}
    (folder / "pairs.jsonl").write_text(json.dumps(line) + "\n")
    spec, *_ = blocks((ROOT / "docs/job-spec-file.md").read_text("utf-8"), "yaml")
    (folder / "night.yaml").write_text(spec.replace("job: tickets", "job: of-a-file"))
    (folder / "data").mkdir()
    (folder / "data/tickets.jsonl").write_text(lines)
    (folder / "prompts").mkdir()
    (folder / "prompts/summarise.txt").write_text("Summarise: {text}")


def of_page(machine: Place, page: str) -> Place:
    """Return the folder in which a page is followed from its first command to its last."""
    folder = machine.folder / "pages" / page.replace("/", "-")
    if not folder.exists():
        left_out = shutil.ignore_patterns("pages", "redis", *("*" if page in BARE else ()))
        shutil.copytree(machine.folder, folder, ignore=left_out)
        if page == "docs/providers.md":  # submits to these; no worker here has their addresses
            with (folder / "penstock.toml").open("a") as file:
                file.writelines(blocks((ROOT / page).read_text("utf-8"), "toml"))
    return replace(machine, folder=folder)


def typed(place: Place, command: str, *, most: tuple[int, ...] = (0,)) -> str:
    """Type a command into a shell; return what it has printed."""
    command = re.sub(r"(?<![\w/])(?:\.\./)?examples/", f"{ROOT}/examples/", place.here(command))
    gemini = f"--api gemini --base-url {place.provider.removesuffix('/v1')}"
    command = re.sub(r"(penstock run .*)--api gemini", rf"\1{gemini}", command)
    command = KEY.sub(place.environment.get("KEY", ""), command)
    status, told = place.run(["bash", "-c", f"{CURL}\n{command}"])
    assert status in most, f"{command}\n{told}"
    if found := KEY.findall(told):
        place.environment["KEY"] = found[-1]
    return told


KEY = re.compile(r"key_[0-9a-f]{24}")  # of the doors: the one that was made last
CURL = 'curl() { command curl -sS --fail-with-body --max-time 20 "$@"; }'


# -- what each command must do ---------------------------------------------------------------------


def runs(place: Place, one: Typed) -> None:
    """It succeeds and prints what the page shows, but for numbers. A run whose page shows dead
    letters may have some, and so may a report."""
    has_letters = " report " in one.command or any("% dead" in line for line in one.printed)
    told = typed(place, one.command, most=(0, 3) if has_letters else (0,))
    assert missing(one.printed, told) == [], told


def begins(place: Place, one: Typed) -> None:
    """It serves, and says so in the words of the page."""
    command = (
        one.command if "--port" in one.command else f"{one.command.partition('#')[0]} --port 0"
    )
    process = place.start(penstock(place.here(command)))
    place.running.append(process)
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        if not missing(one.printed or ["…serving http…"], told) or "serving on" in line:
            break
    assert process.poll() is None, told
    if one.page not in BARE:  # no command of the page goes on with it
        process.terminate()


def serves_keys(place: Place, one: Typed) -> None:
    """The doors answer, on this machine alone."""
    command = f"penstock gateway --port {place.ports['8600']}"
    place.running.append(place.start(penstock(command)))
    asked = ["curl", "-s", f"http://127.0.0.1:{place.ports['8600']}/health"]
    until(lambda: subprocess.run(asked, capture_output=True).returncode == 0, TIME_S, "it serves")


def makes_a_key(place: Place, one: Typed) -> None:
    place.environment["ADMIN"] = re.findall(r"sk-\S+", typed(place, one.command))[0]


def exports(place: Place, one: Typed) -> None:
    for pair in shlex.split(one.command.removeprefix("export "), comments=True):
        name, _, value = place.here(pair).partition("=")
        place.environment[name] = value


def has_extras(_: Place, one: Typed) -> None:
    """Nothing is fetched here; the extras that it names are there."""
    refuse_unknown_extras(one.command)


def is_taken(_: Place, one: Typed) -> None:
    """A GPU, a model or a server of others is not here: the command line takes it all the same."""
    parse(re.sub(r"^(?:[A-Z_]+=\S+ )+", "", one.command))


def goes_on(place: Place, one: Typed) -> None:
    """It takes the cursor that the command before it has printed."""
    told = typed(place, "penstock results night -o part-1.csv --after start")
    typed(place, re.sub(r"--after \S+", f"--after {told.split()[-1]}", one.command))


class Elsewhere(NamedTuple):
    """Another test runs it, and names its page or its program."""

    test: str


class Never(NamedTuple):
    """Nothing here can run it."""

    why: str


Fate = Callable[[Place, Typed], None] | Elsewhere | Never
A_CLUSTER = Never("a cluster or a cloud, and its account; tests/chart renders what is installed")
A_DAEMON = Never("a Docker daemon that builds images; tests/images reads and plays the files")
EXAMPLES = Elsewhere("tests/smoke/test_examples.py")

# Page and command by regular expression; the first row that fits counts.
TABLE: list[tuple[str, str, Fate]] = [
    (r"", r"pip install ", has_extras),
    (r"containers", r"crane ", Never("a registry of images")),
    (r"results", r".*--after W", goes_on),
    (r"", r".*…$", Never("an excerpt")),
    (r"gateway-jobs", r"", Elsewhere("tests/integration/gateway/jobs/test_jobs_page.py")),
    (r"stores", r"", Elsewhere("tests/stores/test_backup.py")),
    (r"kubernetes", r"penstock submit .*--lane gpu", is_taken),
    (r"kubernetes", r"", A_CLUSTER),
    (r"containers", r"python3 docker/", Elsewhere("tests/smoke/test_readme.py")),
    (r"containers|tracing", r"docker ", A_DAEMON),
    (r"containers", r"mkdir -p data|echo ", A_DAEMON),
    (r"uses/", r"python examples/", EXAMPLES),
    (r"gpu|embed", r".*penstock worker |penstock run .*--lane embed", is_taken),
    (r"gpu|embed", r"penstock submit .*--lane (gpu|embed)", is_taken),
    (
        r"embed",
        r"(head|cat) |\{",
        Never("it shows a file of the commands before, which need a model"),
    ),
    (r"flower", r".*penstock flower", is_taken),
    (r"gateway\.", r"penstock gateway", serves_keys),
    (r"gateway\.", r"penstock keys create", makes_a_key),
    (r"gateway\.", r"DOOR=", exports),
    (r"webhooks", r"curl", Never("its receiver is on the internet")),
    (r"providers|tracing", r"export ", exports),
    (r"simulate|notebook|tour", r"penstock simulate", begins),
    (r"tour", r"penstock serve", begins),
    (r"", r"", runs),
]


def fate_of(one: Typed) -> tuple[str, str, Fate]:
    command = re.sub(r"\s+#.*", "", one.command).strip()
    return next(row for row in TABLE if re.search(row[0], one.page) and re.match(row[1], command))


# five minutes of one process: `make test-all`
@pytest.mark.whole
@pytest.mark.parametrize(
    "one",
    [one for one in COMMANDS if callable(fate_of(one)[2])],
    ids=lambda one: f"{one.page.removeprefix('docs/')}: {one.command.partition('#')[0][:60]}",
)
def test_a_command_of_a_page(machine: Place, one: Typed) -> None:
    """It does what the page says, in the page's order, and prints what the page shows."""
    fate = fate_of(one)[2]
    assert callable(fate)
    fate(of_page(machine, one.page), one)


def test_no_row_of_the_table_is_stale() -> None:
    """Each row is of some command, and a test that is named runs the page or the program."""
    found = [fate_of(one) for one in COMMANDS]
    assert [row for row in TABLE if row not in found] == []
    for one in COMMANDS:
        fate = fate_of(one)[2]
        if isinstance(fate, Elsewhere):
            program = re.match(r"python3? \w+/(\w+)\.py", one.command)
            name = program[1] if program is not None else Path(one.page).name
            assert name in (ROOT / fate.test).read_text("utf-8"), one

"""Build the pages of every release, and of this commit as `dev`, into one folder, with a choice
among them: `python -m tools.site.versions FOLDER`.

Each is built from its own sources by today's tools, so that nothing is stored between two releases
and nothing is pushed: releases are read from the tags. Work happens in a clone beside them.

MkDocs calls `on_config` (its "hooks"). Pages that are built alone have no choice: a browser would
look for its list in vain."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from mkdocs.config.defaults import MkDocsConfig

RELEASE: Final = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
# Minor releases: older pages are read at their tag, and a build takes 20 seconds for each.
KEPT: Final = 5
PAGES: Final = "pages"  # the branch of the clone that mike commits the built pages to
LATEST: Final = "latest"


class Built(NamedTuple):
    """A row of the choice, and the commit that it is built from."""

    version: str
    commit: str
    aliases: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.site.versions", description=__doc__)
    parser.add_argument("folder", type=Path, help="is emptied first")
    folder: Path = parser.parse_args().folder.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / "index.html").is_file():
        parser.error(f"{folder} holds something else than pages, and would be emptied")
    try:
        build(folder)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{shlex.join(error.cmd)} ended with {error.returncode}: nothing was written")


def build(folder: Path) -> None:
    """Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as place:
        clone = Path(place) / "clone"
        git(Path.cwd(), "clone", "--quiet", "--shared", "--no-checkout", ".", str(clone))
        for name, value in (("name", "docs"), ("email", "docs@localhost")):
            git(clone, "config", f"user.{name}", value)
        head = git(Path.cwd(), "rev-parse", "HEAD").strip()
        for built in chosen(git(clone, "tag").split(), head):
            git(clone, "checkout", "--quiet", "--detach", built.commit)
            mike(clone, "deploy", "--update-aliases", built.version, *built.aliases)
        mike(clone, "set-default", LATEST)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        git(clone, f"--work-tree={folder}", "checkout", "--quiet", PAGES, "--", ".")


def chosen(tags: list[str], head: str) -> list[Built]:
    """The newest patch of each minor release, oldest first, and ``head``; the alias `latest` is of
    the newest release, and of ``head`` where there is none."""
    numbers = sorted(
        tuple(int(part) for part in found.groups())
        for found in map(RELEASE.fullmatch, tags)
        if found
    )
    minors = {number[:2]: number for number in numbers}  # a later patch replaces an earlier one
    releases = [
        Built(f"{major}.{minor}", "v" + ".".join(map(str, number)))
        for (major, minor), number in minors.items()
    ][-KEPT:]
    if not releases:
        return [Built("dev", head, (LATEST,))]
    return [*releases[:-1], releases[-1]._replace(aliases=(LATEST,)), Built("dev", head)]


def on_config(config: MkDocsConfig) -> None:
    """Show the choice where mike builds the pages."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike", "default": LATEST, "alias": True}


def git(folder: Path, *words: str) -> str:
    command = ["git", *words]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 -- our own arguments
    return done.stdout


def mike(clone: Path, command: str, *words: str) -> None:
    # It starts `mkdocs` by name.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    program = [sys.executable, "-c", "from mike.driver import main; main()"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PATH": path}
    subprocess.run(  # noqa: S603 -- our own arguments
        [*program, command, "--branch", PAGES, *words], cwd=clone, env=environment, check=True
    )


if __name__ == "__main__":
    main()

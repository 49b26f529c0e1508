"""Files and modules that comments, docstrings and documents name are there."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "docker",
    "gateway",
    "benchmarks",
    "cli",
    "docs",
    "examples",
    "helm",
    "ledger",
    "producer",
    "ratelimit",
    "simulate",
    "penstock",
    "tests",
    "tools",
    "workers",
)
WRITTEN_BY_USERS = {"penstock.toml", "hooks.py", "my_hooks.py", "tasks.py"}

FILE = re.compile(r"(?<![\w./:*{}<>-])((?:[\w.-]+/)*\w[\w-]*\.(?:py|md|lua))(?![\w/]|\.\w)")
MODULE = re.compile(r"(?<![\w./-])(penstock_[a-z]+(?:\.\w+)+)")
CLASS = re.compile(r"``([a-z_]+)(?=\.[A-Z]\w+``)")  # a class, or a constant, behind its module
NAMES = re.compile("|".join(pattern.pattern for pattern in (FILE, MODULE, CLASS)))
OF_OTHERS = {"redis", "subprocess", "vllm"}
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def files(root: Path) -> list[Path]:
    """Files of the project; what a build or a test left behind is not looked at."""
    found = (
        path
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if "__pycache__" not in path.parts
    )
    return [*root.glob("*.md"), *root.glob("*.toml"), *(path for path in found if path.is_file())]


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and texts: all of a document or a Lua script, comments and docstrings of a
    Python file."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    if any(
        "#" in line and NAMES.search(line) for line in text.splitlines()
    ):  # else no comment names anything
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:  # of statements only: expressions hold no docstrings
        node = waiting.pop()
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, part, ())
            waiting += inside if isinstance(inside, list) else ()


def ends(paths: Iterable[Path]) -> frozenset[str]:
    """All names by which files may be called: with all of its folders, with fewer, and with
    none."""
    return frozenset(
        "/".join(path.parts[start:]) for path in paths for start in range(len(path.parts))
    )


def is_file(name: str, path: Path, known: Collection[str]) -> bool:
    """Whether a name is that of a file: beside ``path``, or anywhere by the end of its path."""
    return name in known or (path.parent / name).exists()


def is_module(name: str, known: Collection[str]) -> bool:
    """Whether a dotted name is a module, or a name (or a member of one) that a module may hold."""
    parts = name.split(".")
    paths = ("/".join(parts[:end]) for end in range(len(parts), max(len(parts) - 3, 0), -1))
    return any(
        is_file(f"{path}{end}", ROOT / "none", known)
        for path in paths
        for end in (".py", "/__init__.py")
    )


def missing(path: Path, root: Path, known: Collection[str]) -> Iterator[str]:
    """What a file names that is not there, as `file:line name`."""
    for number, text in words(path):
        names = [
            name
            for name in FILE.findall(text)
            if name not in WRITTEN_BY_USERS and not is_file(name, path, known)
        ]
        names += [name for name in MODULE.findall(text) if not is_module(name, known)]
        names += [
            module
            for module in CLASS.findall(text)
            if module not in OF_OTHERS and f"{module}.py" not in known
        ]
        if path.suffix == ".md":
            names += [link for link in LINK.findall(text) if not (path.parent / link).exists()]
        yield from (f"{path.relative_to(root)}:{number} {name}" for name in names)


def test_what_comments_and_documents_name_exists() -> None:
    """A file, module or relative link that is named anywhere and is not there fails here with its
    line."""
    found = files(ROOT)
    known = ends(path.relative_to(ROOT) for path in found)
    texts = [
        path
        for path in found
        if path.suffix in (".py", ".md", ".lua") and path.name != "CHANGELOG.md"
    ]
    assert len(texts) > 500
    assert [line for path in texts for line in missing(path, ROOT, known)] == []


def test_a_reference_to_nothing_is_found(tmp_path: Path) -> None:
    """Comments, docstrings and links are looked at, and so are modules; code and addresses are
    not."""
    code, page = tmp_path / "here.py", tmp_path / "page.md"
    code.write_text(
        '"""See gone.py, ``away.Thing``, ``here.Thing`` and here.py; penstock_gone.part says '
        'more."""\n'
        'open("other.py")  # as in lost.lua\n'
    )
    page.write_text("[a](here.py) [b](away.md#part) https://example.com/x/readme.md\n")
    found = [
        line for path in (code, page) for line in missing(path, tmp_path, ["here.py", "page.md"])
    ]
    assert sorted(found) == [
        "here.py:1 away",
        "here.py:1 gone.py",
        "here.py:1 penstock_gone.part",
        "here.py:2 lost.lua",
        "page.md:1 away.md",
        "page.md:1 away.md",
    ]

"""Gather every public docstring of the Python standard library as JSON Lines: real documents that
every machine has.

    python examples/corpus.py OUT.jsonl [--limit N]

Each line is `{"id", "module", "kind", "text"}`; an id is a dotted name such as
`json.decoder.JSONDecoder.decode`. Nothing is imported: the source files are parsed. The same Python
gives the same lines in the same order.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypedDict

# Folders of the standard library that hold no library: its tests, applications, and what pip put
# there.
NOT_LIBRARY = {
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "turtledemo",
    "lib2to3",
    "site-packages",
    "dist-packages",
}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Record(TypedDict):
    """One document."""

    id: str  # the dotted name; unique
    module: str
    kind: str  # module, class, function or method
    text: str


def documents(root: Path) -> Iterator[Record]:
    """Every public docstring below ``root``, by file name and then in the order of the file."""
    seen: set[str] = set()  # a name defined twice, as under `if` and `else`, counts once
    for file in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        module = module_name(file.relative_to(root))
        if module is None:
            continue
        for record in file_documents(file, module):
            if record["id"] not in seen:
                seen.add(record["id"])
                yield record


def module_name(file: Path) -> str | None:
    """The dotted name of a public library module; None for tests, applications and private
    modules."""
    parts = [*file.parent.parts, *([] if file.stem == "__init__" else [file.stem])]
    if not parts or any(
        part in NOT_LIBRARY or not part.isidentifier() or part.startswith("_") for part in parts
    ):
        return None
    return ".".join(parts)


def file_documents(file: Path, module: str) -> Iterator[Record]:
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # the library keeps a few files that are wrong on purpose
        return
    for name, kind, node in named(tree, module):
        text = ast.get_docstring(node)
        if text and text.strip():
            yield Record(
                id=name, module=module, kind=kind, text=text.encode("utf-8", "replace").decode()
            )


def named(node: ast.AST, name: str, kind: str = "module") -> Iterator[tuple[str, str, Documented]]:
    """``node`` and the public definitions in it. Definitions inside a function are not public."""
    if isinstance(node, Documented):
        yield name, kind, node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.startswith("_"):
                yield from named(child, f"{name}.{child.name}", kind_of(child, inside=kind))
        elif isinstance(child, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            yield from named(child, name, kind)


def kind_of(node: ast.AST, inside: str) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    return "method" if inside == "class" else "function"


def write(records: Iterator[Record], out: Path) -> int:
    """Write the lines and return their number; the file appears when it is complete."""
    part, number = out.with_name(out.name + ".part"), 0
    with part.open("w", encoding="utf-8") as lines:
        for record in records:
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")
            number += 1
    part.replace(out)
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write the docstrings of the standard library as JSON Lines."
    )
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--limit", type=int, metavar="N", help="stop after N documents")
    options = parser.parse_args(arguments)
    if options.limit is not None and options.limit < 1:
        parser.error(f"--limit: {options.limit} documents are no corpus; give 1 or more")
    found = documents(Path(sysconfig.get_path("stdlib")))
    number = write(islice(found, options.limit), options.out)
    print(f"{number} documents in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

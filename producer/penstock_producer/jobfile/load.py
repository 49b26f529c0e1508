"""A job spec file, read and checked.

It is given as `penstock submit night.yaml`, `penstock run night.yaml`, or `JobFile.load` in Python.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from penstock_producer.errors import Problem, SpecError, seen
from penstock_producer.job.options import seconds_of
from penstock_producer.job.response_schema import ModelFault, is_model_path, schema_of_model
from penstock_producer.jobfile.fields import DURATIONS, FILES, TOP, name_problems, secret_problems
from penstock_producer.jobfile.tree import MAX_VALUES, FileFault, Node, parse_json, parse_yaml
from penstock_producer.source_formats import in_folder, is_database

if TYPE_CHECKING:
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.jobfile.fields import RunSection

__all__ = ["MAX_FILE_BYTES", "JobFile", "is_job_file", "read_lines", "read_text"]

# of a job spec, a prompt or a schema; a larger file was named by mistake
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_YAML: Final = (".yaml", ".yml")
_TRUTH: Final = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false"})


@dataclass(frozen=True, slots=True)
class JobFile:
    """The content of one file.

    ``options`` are fields of `JobSpec`, not yet checked together: flags may add to them."""

    path: str
    source: str | None
    from_job: str | None
    where: tuple[str, ...]
    job: str | None
    options: Mapping[str, Any]
    run: RunSection
    _root: Node
    _written: Mapping[str, str]  # by the spec's field: the name that it has in this file

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a job spec file. Raises SpecError; each problem names file, line and field."""
        shown = str(path)
        try:
            text = read_text(path)
            root = parse_json(text) if shown.lower().endswith(".json") else parse_yaml(text)
        except FileFault as fault:
            raise SpecError([_of_fault(fault, shown)]) from None
        return cls(shown, *_Reader(shown, root).read())

    def spec(self) -> JobSpec:
        """Return the options as a checked spec. Raises SpecError, with file and line."""
        from penstock_producer.job.spec import JobSpec

        try:
            return JobSpec.from_json(self.options)
        except SpecError as error:
            raise SpecError(self.placed(error.problems)) from None

    def placed(
        self, problems: Iterable[Problem], *, typed: frozenset[str] = frozenset()
    ) -> list[Problem]:
        """Return the problems, with file and line where a field comes from this file.

        Those of ``typed`` fields come from flags and stay as they are.
        """
        return [one if _field_of(one) in typed else self._placed(one) for one in problems]

    def _placed(self, problem: Problem) -> Problem:
        name = self._written.get(_field_of(problem))
        return problem if name is None else _in_file(_renamed(problem, name), self._root, self.path)


def is_job_file(where: str) -> bool:
    """Return whether this SOURCE is a job spec file.

    YAML always is, JSON where it is one object with a `source` or a `from_job`. JSON of one object
    per line is a source, also where the file has a single line with the fields of a batch request.
    """
    if "://" in where:
        return False
    if where.lower().endswith(_YAML):
        return True
    if not where.lower().endswith(".json"):
        return False
    try:
        text = read_text(where).strip()
    except FileFault:
        return False
    first, _, rest = text.partition("\n")
    try:
        line = json.loads(first)
    except (ValueError, RecursionError):
        return first.startswith("{") and ('"source"' in text or '"from_job"' in text)
    return (
        isinstance(line, dict)
        and not rest
        and bool({"source", "from_job"} & line.keys())
        and "custom_id" not in line
    )


def read_text(path: str | Path) -> str:
    """Return a text file of bounded size, in UTF-8. Raises FileFault, whose code is stable."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileFault(
                "not_a_regular_file", 0, "this is not a regular file", "name a text file"
            )
        with open(path, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FileFault(
            "unreadable",
            0,
            f"it cannot be read ({error.strerror})",
            "check the path and its rights",
        ) from None
    if len(raw) > MAX_FILE_BYTES:
        raise FileFault(
            "file_too_large", 0, f"it has more than {MAX_FILE_BYTES} bytes", "name a smaller file"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FileFault(
            "invalid_encoding", line, f"byte {error.start} is not UTF-8", "save the file as UTF-8"
        ) from None


def read_lines(text: str) -> list[Any]:
    """Return the values of JSON Lines, each on a line.

    Blank lines count for the numbers only. Raises FileFault.
    """
    values: list[Any] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values.append(parse_json(line).plain())
        except FileFault as fault:
            raise FileFault(fault.code, number, fault.message, fault.fix) from None
        if len(values) > MAX_VALUES:
            raise FileFault(
                "too_many_values",
                number,
                f"there are more than {MAX_VALUES} lines",
                "name a smaller file",
            )
    return values


class _Reader:
    """Takes the tree of a file apart, and keeps every problem, so that one answer has them all."""

    def __init__(self, shown: str, root: Node) -> None:
        self._shown, self._root = shown, root
        self._folder = os.path.dirname(shown)
        self._problems: list[Problem] = []
        self._options: dict[str, Any] = {}
        self._written: dict[str, str] = {}

    def read(
        self,
    ) -> tuple[
        str | None,
        str | None,
        tuple[str, ...],
        str | None,
        Mapping[str, Any],
        RunSection,
        Node,
        Mapping[str, str],
    ]:
        """Return all sections of the file. Raises SpecError with every problem of the file."""
        if not isinstance(self._root.value, dict):
            self._add(
                Problem(
                    "not_an_object",
                    "",
                    f"{seen(self._root.plain())} is not a job spec",
                    "write fields, as model: m",
                )
            )
            raise SpecError(self._problems)
        secrets = list(secret_problems(self._root))  # first and alone: other messages show values
        for problem in secrets or name_problems(self._root):
            self._add(problem)
        if not secrets:
            self._read_options()
        source, from_job, job = (
            None if secrets else self._text(name) for name in ("source", "from_job", "job")
        )
        where = () if secrets else self._where(source, from_job)
        # its values may be secrets
        misnamed = any(problem.pointer.startswith("/run/") for problem in self._problems)
        run = None if secrets or misnamed else self._run()
        if run is None or self._problems:
            raise SpecError(self._problems if secrets else self._all_problems())
        return (
            source and self._path(source),
            from_job,
            where,
            job,
            self._options,
            run,
            self._root,
            self._written,
        )

    def _all_problems(self) -> list[Problem]:
        """Return every problem of the file, in its order there.

        It includes what is wrong with the values of fields that could be read, so that a file is
        corrected once.
        """
        from penstock_producer.job.spec import JobSpec

        for problem in JobSpec.field_problems(self._options):
            name = self._written.get(_field_of(problem))
            if name is not None:
                self._add(_renamed(problem, name))
        return sorted(self._problems, key=lambda one: self._root.at(one.pointer)[1])

    def _read_options(self) -> None:
        for name, node in self._root.value.items():
            field = DURATIONS.get(name) or FILES.get(name) or name
            if field in TOP or any(one.pointer == f"/{name}" for one in self._problems):
                continue
            if field in self._written:
                fix = "keep one of them"
                self._add(
                    Problem(
                        "invalid_value", f"/{name}", f"{self._written[field]} is given, too", fix
                    )
                )
                continue
            self._written[field] = name
            value = self._value(name, node)
            if value is not None:
                self._options[field] = value

    def _value(self, name: str, node: Node) -> Any:
        value = node.plain()
        if name in DURATIONS and isinstance(value, str):
            try:
                return seconds_of(value)
            except ValueError as error:
                self._add(Problem("invalid_value", f"/{name}", f"{seen(value)} {error}", ""))
                return None
        if name in FILES:
            return self._content(name, value)
        if name == "tokenizer" and isinstance(value, str):
            return self._path(value)
        if name == "response_schema" and isinstance(value, str):
            if is_model_path(value):
                return self._model(name, value)
            text = self._content(name, value)
            return (
                None
                if text is None
                else self._json(name, value, text, lambda json_text: parse_json(json_text).plain())
            )
        if name == "examples" and isinstance(value, str):
            text = self._content(name, value)
            return None if text is None else self._json(name, value, text, read_lines)
        return value

    def _model(self, name: str, value: str) -> Any:
        try:
            return schema_of_model(value)
        except ModelFault as fault:
            fix = "name a class that Pydantic describes, or a file with a JSON schema"
            self._add(Problem("invalid_value", f"/{name}", f"{seen(value)}: {fault}", fix))
            return None

    def _content(self, name: str, value: Any) -> str | None:
        """Return the text of another file, without the newline at its end."""
        if not isinstance(value, str) or not value:
            self._add(
                Problem(
                    "invalid_type", f"/{name}", f"{seen(value)} is not a path", "name a text file"
                )
            )
            return None
        try:
            return read_text(self._path(value)).removesuffix("\n")
        except FileFault as fault:
            where = f"{seen(value)} line {fault.line}" if fault.line else seen(value)
            self._add(Problem(fault.code, f"/{name}", f"{where}: {fault.message}", fault.fix))
            return None

    def _json(self, name: str, value: str, text: str, read: Callable[[str], Any]) -> Any:
        try:
            return read(text)
        except FileFault as fault:
            self._add(
                Problem(
                    fault.code,
                    f"/{name}",
                    f"{seen(value)} line {fault.line}: {fault.message}",
                    fault.fix,
                )
            )
            return None

    def _text(self, name: str) -> str | None:
        node = self._root.value.get(name)
        if node is None or node.value is None:
            return None
        if isinstance(node.value, str) and node.value:
            return node.value
        self._add(
            Problem("invalid_type", f"/{name}", f"{seen(node.plain())} is refused", "give text")
        )
        return None

    def _where(self, source: str | None, from_job: str | None) -> tuple[str, ...]:
        """Return the conditions on outcomes.

        They stand beside `from_job`, and not beside a source.
        """
        if source is not None and from_job is not None:
            self._add(
                Problem("invalid_value", "/from_job", "source is given, too", "keep one of them")
            )
        node = self._root.value.get("where")
        given = None if node is None else node.plain()
        texts = [] if given is None else [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
            self._add(
                Problem(
                    "invalid_type",
                    "/where",
                    f"{seen(given)} is refused",
                    "give a text or a list of texts",
                )
            )
            return ()
        if texts and from_job is None:
            self._add(
                Problem(
                    "invalid_value",
                    "/where",
                    "there is no from_job that it is about",
                    "add from_job: JOB",
                )
            )
        return tuple(texts)

    def _run(self) -> RunSection | None:
        from pydantic import ValidationError

        from penstock_producer.jobfile.fields import RunSection, run_problems

        given = self._root.value.get("run")
        values = {} if given is None or given.value is None else given.plain()
        if not isinstance(values, dict):
            self._add(
                Problem(
                    "invalid_type",
                    "/run",
                    f"{seen(values)} is refused",
                    "give fields, as run: {out: results}",
                )
            )
            return None
        try:
            section = RunSection(**values)
        except ValidationError as error:
            for problem in run_problems(error):
                self._add(problem)
            return None
        places = {
            name: self._path(value)
            for name, value in (("out", section.out), ("state", section.state))
            if value
        }
        return section.model_copy(update=places)

    def _path(self, value: str) -> str:
        """Return a path as it counts from the folder of the file."""
        if is_database(value):
            return in_folder(value, self._folder)
        return value if "://" in value else os.path.join(self._folder, os.path.expanduser(value))

    def _add(self, problem: Problem) -> None:
        self._problems.append(_in_file(problem, self._root, self._shown))


def _renamed(problem: Problem, name: str) -> Problem:
    """Return the problem with the name that the field has in the file."""
    rest = problem.pointer.partition("/")[2].partition("/")[2]
    return dataclasses.replace(problem, pointer=f"/{name}/{rest}" if rest else f"/{name}")


def _in_file(problem: Problem, root: Node, shown: str) -> Problem:
    node, line = root.at(problem.pointer)
    return dataclasses.replace(
        problem, place=f"{shown} line {line}", fix=problem.fix + _hint(problem, node)
    )


def _field_of(problem: Problem) -> str:
    return problem.pointer.lstrip("/").partition("/")[0]


def _hint(problem: Problem, node: Node) -> str:
    """Return what may have been meant by a value of the wrong type."""
    if problem.code != "invalid_type" or not isinstance(node.value, str):
        return ""
    if node.value.lower() in _TRUTH:
        return "; truth values are true and false, without quotes"
    try:
        float(node.value)
    except ValueError:
        return ""
    return "; write the number without quotes" if node.quoted else "; write the number as JSON does"


def _of_fault(fault: FileFault, shown: str) -> Problem:
    column = f" column {fault.column}" if fault.column else ""
    place = f"{shown} line {fault.line}{column}" if fault.line else shown
    return Problem(fault.code, fault.pointer, fault.message, fault.fix, place)

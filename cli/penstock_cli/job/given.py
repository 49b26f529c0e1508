"""The job that a command was given: by flags, a job spec file, or a file with flags over it.

Commands that only look at a job count its tokens with the one that --tokenizer names, even where
nothing is cut by it. Whether its hooks can be imported is found out before anything is started: a
child does it, with a time limit, since a module may do anything when it is imported, and what it
does must not happen here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_cli.errors import UsageProblem
from penstock_ledger.texts import Text
from penstock_producer.job.endpoints import CHAT, CONVERSE, GENERATE, MESSAGES
from penstock_producer.job.lanes import DEFAULT_LANE, permitted
from penstock_producer.job.options import OPTIONS, FlagForm

if TYPE_CHECKING:
    from penstock_cli.job.options import ProviderFlags
    from penstock_producer.errors import Problem, SpecError
    from penstock_producer.jobfile import JobFile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_producer.accepting.estimates import TokenMeter
    from penstock_producer.job.spec import JobSpec
import importlib
import subprocess
import sys
from collections.abc import Iterable
from typing import Literal

# by API, where none is named
_ENDPOINTS = {
    "openai": CHAT,
    "anthropic": MESSAGES,
    "gemini": GENERATE,
    "bedrock": CONVERSE,
    "vertex": GENERATE,
}

JobFlags = Mapping[str, Any]
"""The job options as they were typed, or as a job spec file has them, by the spec's field; left out
is None, or not there."""


def parse_pairs(flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs; a value that is JSON is taken as JSON, anything else as text.

    Raises UsageProblem.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageProblem(
                f"{flag} {pair!r} is not name=value; write for example {flag} max_tokens=200"
            )
        if name in values:
            raise UsageProblem(f"{flag} {name} is given twice; keep one of them")
        values[name.strip()] = _json_or_text(text)
    return values


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda word: word)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class FromJob:
    """Instead of a source: the outcomes of a job."""

    job: str
    where: Sequence[str]


@dataclass(frozen=True, slots=True)
class GivenJob:
    """Source and options of one job. ``file`` is None where it was all typed."""

    source_or_none: str | None
    flags: JobFlags
    file: JobFile | None = None
    typed: frozenset[str] = frozenset()  # fields that flags say, which go before the file's
    source_typed: bool = False

    @property
    def has_source(self) -> bool:
        return self.source_or_none is not None

    @property
    def source(self) -> str:
        """Raises UsageProblem where neither an argument nor the file names one."""
        if self.source_or_none is not None:
            return self.source_or_none
        if self.file is None:
            raise UsageProblem("name the documents: SOURCE, or a job spec file that has one")
        raise self._no_source(self.file)

    def key(self, typed: str | None) -> str | None:
        """Return the job key; None where neither a flag nor the file names one."""
        return typed if typed is not None or self.file is None else self.file.job

    @staticmethod
    def _no_source(file: JobFile) -> UsageProblem:
        return UsageProblem(
            f"{file.path} names no source; write source: FILE there, or give it with --spec: "
            f"SOURCE --spec {file.path}"
        )

    @property
    def lanes(self) -> tuple[str, ...]:
        """Return the lanes that the job may go to, as they were given.

        Unknown names are refused later, together with the spec.
        """
        lane, named = self.flags.get("lane"), self.flags.get("lanes")
        names = [name.strip() for name in named.split(",")] if isinstance(named, str) else named
        return permitted(
            str(lane or DEFAULT_LANE),
            [str(name) for name in names] if isinstance(names, list) else None,
        )

    def outcomes(
        self, job: str | None, where: Sequence[str] | None, names: str = "--from-job JOB"
    ) -> FromJob | None:
        """Return the job whose outcomes are read; None where a source is read.

        What is typed goes before the file. Raises UsageProblem for documents from nowhere or from
        two places, and for conditions without a job whose outcomes they choose.
        """
        if (
            job is None
            and not self.source_typed
            and self.file is not None
            and self.file.from_job is not None
        ):
            return FromJob(self.file.from_job, where or self.file.where)
        if job is None and not self.has_source and self.file is not None:
            raise self._no_source(self.file)
        from_two, from_nowhere = (
            job is not None and self.source_typed,
            job is None and not self.has_source,
        )
        if from_two or from_nowhere or (where and job is None):
            raise UsageProblem(f"give a SOURCE, or {names} with or without --where, and not both")
        return None if job is None else FromJob(job, where or ())

    def of_run(self, name: str, typed: Any) -> Any:
        """Return a field of the file's section `run`, where no flag says otherwise."""
        return typed if typed is not None or self.file is None else getattr(self.file.run, name)

    def provider(self, typed: ProviderFlags) -> ProviderFlags:
        return replace(
            typed,
            **{one.name: self.of_run(one.name, getattr(typed, one.name)) for one in fields(typed)},
        )

    def for_api(self, api: str | None) -> GivenJob:
        """Return the job with this API's endpoint, where none is named. Raises UsageProblem."""
        if api is None:
            return self
        if api not in _ENDPOINTS:
            raise UsageProblem(f"--api {api!r} is refused: the APIs are {', '.join(_ENDPOINTS)}")
        if api == "openai" or self.flags.get("endpoint") is not None:
            return self  # the lane decides
        return replace(self, flags={**self.flags, "endpoint": _ENDPOINTS[api]})

    def refusal(self, error: SpecError) -> UsageProblem:
        """Return what is wrong with the spec, in the words of the flags, with lines of the file."""
        from penstock_producer.errors import listed

        problems = (
            error.problems
            if self.file is None
            else self.file.placed(error.problems, typed=self.typed)
        )
        return UsageProblem(listed(map(_in_words, problems)))


def given_job(
    source: str | None,
    spec: Path | None,
    flags: JobFlags,
    typed: frozenset[str],
    files: Mapping[str, Path],
) -> GivenJob:
    """Return the job that flags and a job spec file describe together.

    ``typed`` are the fields whose flags were typed; ``files`` are the text files that flags name
    for some of them. Raises UsageProblem, and SpecError for a job spec file that cannot be used.
    """
    from penstock_producer.jobfile import JobFile, is_job_file

    said = dict(flags)
    for field, text_file in files.items():
        if field in typed:
            raise UsageProblem(f"--{field} and --{field}-file are both given; keep one of them")
        said[field] = _text_of(f"--{field}-file", text_file)
    typed |= files.keys()
    if source is not None and is_job_file(source):
        if spec is not None:
            raise UsageProblem(
                f"{source} is a job spec file, and so is --spec {spec}; give documents as SOURCE, "
                "or leave --spec out"
            )
        spec, source = Path(source), None
    if spec is None:
        return GivenJob(source, said, None, typed, source is not None)
    file = JobFile.load(spec)
    for field, value in file.options.items():
        if field not in typed:
            said[field] = value
        elif OPTIONS[field].form is FlagForm.PAIRS and isinstance(value, dict):
            said[field] = value | parse_pairs(f"--{OPTIONS[field].name}", flags[field])
    return GivenJob(
        source if source is not None else file.source,
        {field: said.get(field) for field in OPTIONS},
        file,
        typed,
        source is not None,
    )


def _text_of(flag: str, path: Path) -> str:
    """Return what a text file holds, without the newline at its end.

    Raises UsageProblem for a file that cannot be read.
    """
    from penstock_producer.jobfile import FileFault, read_text

    try:
        return read_text(path).removesuffix("\n")
    except FileFault as fault:
        line = f" line {fault.line}" if fault.line else ""
        raise UsageProblem(f"{flag} {path}{line}: {fault.message}; {fault.fix}") from None


def _in_words(problem: Problem) -> str:
    """Write a problem of the spec in the words of the flags.

    ``/params/max_tokens`` was typed as ``--param max_tokens``. A problem of a file names its line
    there.
    """
    if problem.place:
        return problem.text
    name, _, rest = problem.pointer.lstrip("/").partition("/")
    flag = f"--{OPTIONS[name].name}" if name in OPTIONS else f"--{name}"
    return Text(f"{flag}{' ' + rest if rest else ''}: ", problem.message, "; ", problem.fix)


def for_a_look(given: GivenJob) -> tuple[GivenJob, str | None]:
    """Return the job without a tokenizer that its spec has no use for, and that tokenizer."""
    tokenizer = given.flags.get("tokenizer")
    if tokenizer is None or _cuts_by_tokens(given):
        return given, None
    return replace(given, flags={**given.flags, "tokenizer": None}), str(tokenizer)


def meter(spec: JobSpec, tokenizer: str | None) -> TokenMeter:
    """Return the meter that counts the job's tokens.

    Raises UsageProblem for a tokenizer that was named and cannot be read.
    """
    from penstock_producer.accepting.estimates import meter_of

    try:
        return meter_of(spec.model, tokenizer or spec.tokenizer)
    except ValueError as error:
        raise UsageProblem(f"--tokenizer: {error}") from error


def _cuts_by_tokens(given: GivenJob) -> bool:
    limits = given.flags.get("truncate") or {}
    pairs = parse_pairs("--truncate", limits) if isinstance(limits, list) else limits
    return any(str(limit).partition(":")[0].strip().endswith("t") for limit in pairs.values())


TIMEOUT_S = 60.0  # as long as a hook itself may take; a module that loads a model is done by then
_MARK = "penstock hook check: "  # a module may print as well

Fault = tuple[Literal["module", "function"], str]  # what cannot be had, and why


def check_hooks(paths: Iterable[str | None], *, workers_elsewhere: bool = False) -> None:
    """Raise UsageProblem for a hook that is not there.

    With ``workers_elsewhere`` a module that cannot be imported here is accepted: the workers'
    machines may have it.
    """
    wanted = [path for path in paths if path is not None]
    if not wanted:
        return
    for path, fault in zip(wanted, _faults(wanted), strict=True):
        if fault is None or (workers_elsewhere and fault[0] == "module"):
            continue
        raise UsageProblem(
            f"hook {path}: {fault[1]}; correct the path, or the module (modules here count, too)"
        )


def _faults(paths: list[str]) -> list[Fault | None]:
    command = [sys.executable, "-m", "penstock_cli.job.given", *paths]
    try:
        done = subprocess.run(  # noqa: S603  # our own module, and paths whose form the spec has checked
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [("module", f"importing it takes longer than {TIMEOUT_S:g} s")] * len(paths)
    _, mark, found = done.stdout.rpartition(_MARK)
    if not mark:  # os._exit, a crash in an extension
        return [("module", f"importing it ended the process with status {done.returncode}")] * len(
            paths
        )
    return [None if fault is None else (fault[0], fault[1]) for fault in json.loads(found)]


def _fault(path: str) -> Fault | None:
    name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        return "module", f"{name} cannot be imported ({type(error).__name__}: {error})"
    hook = getattr(module, attribute, None)
    if callable(hook):
        return None
    return (
        "function",
        f"{attribute} is not in {name}"
        if hook is None
        else f"{attribute} is {type(hook).__name__}, not a function",
    )


def _main() -> None:
    """Check in the child process: the working folder counts last, as in workers."""
    if "" in sys.path:
        sys.path.remove("")
    sys.path.append("")
    faults = [_fault(path) for path in sys.argv[1:]]
    sys.stdout.write(_MARK + json.dumps(faults))


if __name__ == "__main__":
    _main()

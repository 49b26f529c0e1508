"""The job that a command was given: by flags, by a job spec file, or by a file with flags over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_cli.errors import UsageProblem
from penstock_cli.job.pairs import parse_pairs
from penstock_producer.job.options import OPTIONS, FlagForm

if TYPE_CHECKING:
    from penstock_cli.job.options import ProviderFlags
    from penstock_producer.errors import Problem, SpecError
    from penstock_producer.jobfile import JobFile

JobFlags = Mapping[str, Any]
"""The job options as they were typed, or as a job spec file has them, by the spec's field; left out is None, or not there."""


@dataclass(frozen=True, slots=True)
class GivenJob:
    """Source and options of one job. ``file`` is None where it was all typed."""

    source_or_none: str | None
    flags: JobFlags
    file: JobFile | None = None
    typed: frozenset[str] = frozenset()  # fields that flags say, which go before the file's

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
        raise UsageProblem(
            f"{self.file.path} names no source; write source: FILE there, or give it with --spec: SOURCE --spec {self.file.path}"
        )

    def key(self, typed: str | None) -> str | None:
        """The job key; None where neither a flag nor the file names one."""
        return typed if typed is not None or self.file is None else self.file.job

    def of_run(self, name: str, typed: Any) -> Any:
        """A field of the file's section `run`, where no flag says otherwise."""
        return typed if typed is not None or self.file is None else getattr(self.file.run, name)

    def provider(self, typed: ProviderFlags) -> ProviderFlags:
        return replace(typed, **{one.name: self.of_run(one.name, getattr(typed, one.name)) for one in fields(typed)})

    def refusal(self, error: SpecError) -> UsageProblem:
        """What is wrong with the spec, in the words of the flags and with the lines of the file."""
        from penstock_producer.errors import listed

        problems = error.problems if self.file is None else self.file.placed(error.problems, typed=self.typed)
        return UsageProblem(listed(map(_in_words, problems)))


def given_job(
    source: str | None, spec: Path | None, flags: JobFlags, typed: frozenset[str], files: Mapping[str, Path]
) -> GivenJob:
    """``typed`` are the fields whose flags were typed; ``files`` the text files that flags name for some of them.

    Raises UsageProblem, and SpecError for a job spec file that cannot be used.
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
                f"{source} is a job spec file, and so is --spec {spec}; give documents as SOURCE, or leave --spec out"
            )
        spec, source = Path(source), None
    if spec is None:
        return GivenJob(source, said, None, typed)
    file = JobFile.load(spec)
    for field, value in file.options.items():
        if field not in typed:
            said[field] = value
        elif OPTIONS[field].form is FlagForm.PAIRS and isinstance(value, dict):
            said[field] = value | parse_pairs(f"--{OPTIONS[field].name}", flags[field])
    return GivenJob(
        source if source is not None else file.source, {field: said.get(field) for field in OPTIONS}, file, typed
    )


def _text_of(flag: str, path: Path) -> str:
    """What a text file holds, without the newline at its end. Raises UsageProblem."""
    from penstock_producer.jobfile import FileFault, read_text

    try:
        return read_text(path).removesuffix("\n")
    except FileFault as fault:
        line = f" line {fault.line}" if fault.line else ""
        raise UsageProblem(f"{flag} {path}{line}: {fault.message}; {fault.fix}") from None


def _in_words(problem: Problem) -> str:
    """``/params/max_tokens`` was typed as ``--param max_tokens``; what a file says has its place there."""
    if problem.place:
        return str(problem)
    name, _, rest = problem.pointer.lstrip("/").partition("/")
    flag = f"--{OPTIONS[name].name}" if name in OPTIONS else f"--{name}"
    return f"{flag}{' ' + rest if rest else ''}: {problem.message}; {problem.fix}"

"""What `penstock plan` knows of a job: from its source, from an earlier job, or as it was typed;
each with its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_cli.errors import UsageProblem
from penstock_cli.job.counting import for_a_look, meter
from penstock_cli.plan.measured_job import MeasuredJob, measured_job
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.planning.figures import Figure

if TYPE_CHECKING:
    from penstock_cli.job.given import GivenJob
    from penstock_producer.job.spec import JobSpec

ANSWER_CHARS_PER_TOKEN: Final = 4.0  # of an answer's text in the database
FIRST_TOKEN_S: Final = 0.5  # of a call of which nothing was measured,
TOKENS_PER_S: Final = 50.0  # and so many tokens of its answer a second
_SUFFIXES: Final = {"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "g": 1e9, "G": 1e9}
DOCUMENTS_MAX: Final = 10**12
TOKENS_MAX: Final = 10**9  # of one document


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `penstock plan` itself as they were typed."""

    documents: int | None = None
    within_s: float | None = None
    tokens_in: float | None = None
    tokens_out: float | None = None
    latency_s: float | None = None
    workers: int | None = None
    concurrency: int | None = None
    job: str | None = None
    job_workers: int = 1
    state: Path | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """One job, in figures of a document."""

    spec: JobSpec
    documents: int
    tokens_in: float
    tokens_out: float
    max_tokens: int | None  # that a request lets its answer have
    body_bytes: float
    answer_bytes: float
    latencies_s: Sequence[float]
    again: float  # share of calls that are followed by another
    job: MeasuredJob | None
    assumptions: Sequence[Figure]


def documents_of(text: str) -> int:
    """``100M``, ``1.5k``, ``20000``. Raises UsageProblem."""
    digits, factor = (
        (text[:-1], _SUFFIXES[text[-1]]) if text and text[-1] in _SUFFIXES else (text, 1.0)
    )
    try:
        number = round(float(digits.replace(",", "").replace("_", "")) * factor)
    except (ValueError, OverflowError):
        number = 0
    if not 1 <= number <= DOCUMENTS_MAX:
        raise UsageProblem(
            f"--documents {text!r} is no number of documents; write 20000, 1.5k or 100M"
        )
    return number


def tokens_of(flag: str, typed: float | None) -> float | None:
    """Raises UsageProblem for what no document has."""
    if typed is not None and not 0 <= typed <= TOKENS_MAX:
        raise UsageProblem(
            f"{flag} {typed:g} is refused: a document has 0 to {TOKENS_MAX:,} tokens"
        )
    return typed


def most_of(spec: JobSpec) -> int | None:
    """Tokens of an answer that the job's requests allow; None where they do not say."""
    from penstock_producer.accepting.estimates import output_asked

    return output_asked(dict(spec.params))


def picture_of(given: GivenJob, asked: Asked) -> Picture:
    """Raises UsageProblem, and what reading a source and the database raises."""
    job = None if asked.job is None else measured_job(asked.job, asked.state, asked.job_workers)
    return _Drawn(given, asked, job).picture()


class _Drawn:
    def __init__(self, given: GivenJob, asked: Asked, job: MeasuredJob | None) -> None:
        from penstock_cli.job.jobspec import job_spec

        self._given, self._asked, self._job = given, asked, job
        given, self._tokenizer = for_a_look(given)
        self._spec = job.spec if job is not None and not given.has_source else job_spec(given)
        self._noted: list[Figure] = []

    def picture(self) -> Picture:
        spec, asked, job = self._spec, self._asked, self._job
        source_documents = tokens_in = tokens_out = size = None
        capped = False
        if self._given.has_source:
            from penstock_producer.accepting.survey import survey
            from penstock_producer.settings import ProducerSettings
            from penstock_producer.sources import open_source

            counts = meter(spec, self._tokenizer)
            found = survey(
                open_source(self._given.source, spec, ProducerSettings.load()), spec, meter=counts
            )
            source_documents = found.total - len(found.refused)
            if not source_documents:
                raise UsageProblem(f"{self._given.source} holds no usable document")
            tokens_in = found.estimate.tokens_in / source_documents
            tokens_out, capped = found.estimate.tokens_out / source_documents, found.estimate.capped
            size = found.size / max(1, found.total)
            read = f"the source, read whole; prompts by {found.estimate.by}"
        else:
            read = ""
        documents = (
            asked.documents or source_documents or (job.documents if job is not None else None)
        )
        if documents is None:
            raise UsageProblem(
                "say how many documents: SOURCE, --documents 100M, or --from-job JOB"
            )
        self._note(
            "documents",
            documents,
            "",
            "as typed" if asked.documents else read or f"job {asked.job}",
        )
        most = round(tokens_out) if capped and tokens_out is not None else most_of(spec)
        of_job = (None, None) if job is None else (job.tokens_in, job.tokens_out)
        tokens_in = self._tokens("prompt tokens", asked.tokens_in, of_job[0], tokens_in, read)
        out_read = (
            f"{read}; "
            f"{'max_tokens of the requests, the most' if capped else 'no max_tokens is set: taken'}"
        )
        tokens_out = self._tokens(
            "answer tokens", asked.tokens_out, of_job[1], tokens_out, out_read
        )
        answer = job.answer_bytes if job is not None else None
        return Picture(
            spec,
            documents,
            tokens_in,
            tokens_out,
            most,
            size if size is not None else tokens_in * ANSWER_CHARS_PER_TOKEN,
            answer if answer is not None else tokens_out * ANSWER_CHARS_PER_TOKEN,
            self._latencies(tokens_out),
            self._again(),
            job,
            self._noted,
        )

    def _tokens(
        self,
        name: str,
        typed: float | None,
        of_job: float | None,
        of_source: float | None,
        read: str,
    ) -> float:
        """What is typed goes before what an earlier job measured, and that before what the source
        lets one expect."""
        for value, source in (
            (typed, "as typed"),
            (of_job, f"job {self._asked.job}, mean"),
            (of_source, read),
        ):
            if value is not None:
                self._note(name, value, "a document", source)
                return value
        raise UsageProblem(
            "say how long requests and answers are: --tokens-in N --tokens-out N, or a SOURCE, or "
            "--from-job JOB"
        )

    def _latencies(self, tokens_out: float) -> Sequence[float]:
        job = self._job
        if self._asked.latency_s is not None:
            self._note("seconds of a call", self._asked.latency_s, "", "as typed")
            return (self._asked.latency_s,)
        timed = (
            [] if job is None else [one for one in job.lanes.values() if _asks_a_provider(one.lane)]
        )
        if timed:
            some = timed[0].latencies_s
            words = (
                f"job {self._asked.job}; median {_at(some, 0.5):.2f}, 99 % below "
                f"{_at(some, 0.99):.2f}"
            )
            self._note("seconds of a call", sum(some) / len(some), "mean", words)
            return some
        guess = FIRST_TOKEN_S + tokens_out / TOKENS_PER_S
        words = (
            f"assumed: {FIRST_TOKEN_S:g} s and {TOKENS_PER_S:g} tokens a second; --latency or "
            "--from-job say better"
        )
        self._note("seconds of a call", guess, "", words)
        return (guess,)

    def _again(self) -> float:
        if self._job is None:
            self._note(
                "calls that are repeated",
                0.0,
                "of all",
                "assumed, as nothing was measured; --from-job",
            )
            return 0.0
        for one in self._job.lanes.values():
            where = f" in {one.lane}" if len(self._job.lanes) > 1 else ""
            self._note(
                "calls that are repeated", one.again, "of all", f"job {self._asked.job}{where}"
            )
        return self._job.main.again

    def _note(self, name: str, value: float, unit: str, source: str) -> None:
        self._noted.append(Figure(name, value, unit, source))


def _asks_a_provider(lane: str) -> bool:
    """Whether the times of this lane's calls are those of a provider: a batch has none, and an
    engine has its own."""
    return not packs(lane) and not has_own_model(lane)


def _at(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, round(part * (len(values) - 1)))]

"""`penstock plan` knows a job from its source, from an earlier job, or as typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import for_a_look, meter
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.planning.flow import Figure

if TYPE_CHECKING:
    from penstock_cli.job.given import GivenJob
    from penstock_ledger import ProviderBatch
    from penstock_ledger.model import Spent
    from penstock_producer.job.spec import JobSpec


LOOKED_AT: Final = 20_000  # outcomes, the first by their ids
LATENCIES: Final = 1_000  # kept of them, evenly over their order
# of the outcomes in time: what lies between has neither the start nor the end in it
STEADY: Final = (0.1, 0.9)
AGAIN_MAX: Final = 0.9


@dataclass(frozen=True, slots=True)
class MeasuredLane:
    """Of the documents of a job that one lane has answered."""

    lane: str
    documents: int  # finished there
    cost_usd: float | None  # of one; None where nothing has a price
    latencies_s: Sequence[float]  # of calls
    again: float  # calls that were followed by another, of all
    per_second: float | None  # of one worker, between its beginning and its end there


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """Figures of one document, where not said otherwise."""

    spec: JobSpec
    documents: int  # finished
    tokens_in: float
    tokens_out: float
    answer_bytes: float
    lanes: Mapping[str, MeasuredLane]  # one at least; the one that answered most comes first
    turnarounds_s: Sequence[float]  # of its batches at providers, from create to end

    @property
    def main(self) -> MeasuredLane:
        """The lane that answered most."""
        return next(iter(self.lanes.values()))


def measured_job(name: str, state: Path | None, workers: int) -> MeasuredJob:
    """Return what an earlier job measured.

    Raises UsageProblem for a job of which nothing has finished; JobNotFound.
    """
    from penstock_cli.connect import books
    from penstock_ledger import BatchFigures
    from penstock_producer.job.spec import JobSpec

    with books(state) as ledger:
        job = ledger.jobs.get(name)
        counts = ledger.outcomes.counts(job.job_id)
        some = ledger.outcomes.spent(job.job_id, LOOKED_AT)
        batches = BatchFigures(ledger.database).of_job(job.job_id)
        lanes = {one.lane for one in ledger.made_with(job)}
    answered = _answered(some)
    if not answered:
        raise UsageProblem(
            f"--from-job {name}: it has no answered document to measure; take one that has results"
        )
    finished = counts.succeeded + counts.dead
    spec = JobSpec.accepted(job.spec)
    usual = lanes.pop() if len(lanes) == 1 else spec.first_lane
    return MeasuredJob(
        spec,
        finished,
        _mean([one.prompt_tokens for one in answered]),
        _mean([one.completion_tokens for one in answered]),
        _mean([one.answer_bytes for one in answered]),
        _by_lane(some, usual, finished / len(some), workers),
        _turnarounds(batches),
    )


def _by_lane(
    some: Sequence[Spent], usual: str, share: float, workers: int
) -> Mapping[str, MeasuredLane]:
    """Measure the documents by lane.

    ``usual`` is where documents were answered of which the ledger does not say it. ``share`` is the
    ratio of the job's documents to those that were looked at.
    """
    found: dict[str, list[Spent]] = {}
    for one in some:
        found.setdefault(one.lane or usual, []).append(one)
    measured = [_lane(lane, its, share, workers) for lane, its in found.items() if _answered(its)]
    return {one.lane: one for one in sorted(measured, key=attrgetter("documents"), reverse=True)}


def _lane(lane: str, its: Sequence[Spent], share: float, workers: int) -> MeasuredLane:
    answered = _answered(its)
    finished = round(len(its) * share)
    return MeasuredLane(
        lane,
        finished,
        _mean([one.cost_microusd for one in its]) / 1e6
        if any(one.cost_microusd for one in its)
        else None,
        _latencies(answered),
        min(AGAIN_MAX, max(0.0, 1 - len(answered) / sum(one.calls for one in answered))),
        _pace(its, finished, workers),
    )


def _answered(some: Sequence[Spent]) -> list[Spent]:
    return [one for one in some if not one.is_dead and one.calls]


def _latencies(answered: Sequence[Spent]) -> Sequence[float]:
    """Return the seconds of calls; whole milliseconds: a call takes half of one at least."""
    ordered = sorted(max(0.5, one.latency_ms) / 1_000 for one in answered)
    step = max(1, len(ordered) // LATENCIES)
    return ordered[step // 2 :: step]


def _pace(some: Sequence[Spent], finished: int, workers: int) -> float | None:
    """Return documents a second; None where all was stored at once, or few say nothing."""
    times = sorted(one.created_at for one in some)
    first, last = (round(part * (len(times) - 1)) for part in STEADY)
    if last <= first or times[last] <= times[first]:
        return None
    seen = (last - first) * finished / len(some)
    return seen / (times[last] - times[first]) / workers


def _turnarounds(batches: Sequence[ProviderBatch]) -> Sequence[float]:
    return [
        max(0.1, one.ended_at - one.created_at)
        for one in batches
        if one.ended_at is not None and one.created_at is not None
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
    """Read ``100M``, ``1.5k`` or ``20000``. Raises UsageProblem."""
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
    """Return the tokens that were typed. Raises UsageProblem for what no document has."""
    if typed is not None and not 0 <= typed <= TOKENS_MAX:
        raise UsageProblem(
            f"{flag} {typed:g} is refused: a document has 0 to {TOKENS_MAX:,} tokens"
        )
    return typed


def most_of(spec: JobSpec) -> int | None:
    """Return the tokens of an answer that the job's requests allow; None where they do not say."""
    from penstock_producer.accepting.estimates import output_asked

    return output_asked(dict(spec.params))


def picture_of(given: GivenJob, asked: Asked) -> Picture:
    """Draw the picture of a job from what was given.

    Raises UsageProblem, and what reading a source and the database raises.
    """
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
        """Return the tokens as typed, else as an earlier job measured, else as the source tells."""
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
    """Return whether the times of this lane's calls are those of a provider.

    A batch has none, and an engine has its own."""
    return not packs(lane) and not has_own_model(lane)


def _at(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, round(part * (len(values) - 1)))]

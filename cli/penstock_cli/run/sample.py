"""`penstock run --sample N`: a job of its own over N documents, drawn at random from the source.

The draw is seeded by source, options and N: the same command draws the same documents, and so goes
on with them.

Its results lie in OUT/sample-<digest>, where the digest names source, options and N: other options
are another sample. The run of all documents, with the same options, takes its results over, so that
they are not paid again.

STATE/samples/<job key>.jsonl   the documents, as OpenAI Batch lines
STATE/samples/<job key>.json    the options of the whole job, where each document stands in the
                                source, and the sizes of the requests: of each drawn one, and of
                                all of them together
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock_cli.errors import UsageProblem
from penstock_cli.state import private_opener, write_private
from penstock_producer.job.options import SINK_FIELDS
from penstock_producer.pins import content_of

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_cli.run.request import RunRequest
    from penstock_cli.state import StateFolder
    from penstock_ledger.model import Job, Result
    from penstock_producer.accepting.survey import Survey
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.settings import ProducerSettings

_FOLDER = "samples"
# how a result came that a sample had: as `dedup` and `cache` are for equal requests
TAKEN_OVER: Final = "sample"
# They decide nothing about the answer to a request.
_MAY_DIFFER: Final = frozenset(
    {"budget_usd", "deadline_s", "over_budget", "format", "encoding", *SINK_FIELDS}
)


def sampled(
    request: RunRequest, number: int, spec: JobSpec, state: StateFolder, settings: ProducerSettings
) -> RunRequest:
    """Return the request for the sample of ``request``.

    Its documents are written into the state folder.

    Raises UsageProblem for a source without documents, and what reading a source raises.
    """
    from penstock_producer.accepting.sampling import (
        FOR_ALL,
        check_sampled,
        drawn,
        said_by_lines,
        sampled_line,
    )
    from penstock_producer.sources import open_source

    check_sampled(spec)
    found = _surveyed(request.source, spec, settings)
    given = json.dumps(
        [deciding_options(spec), content_of(found.pin), number], sort_keys=True, default=str
    )
    digest = hashlib.sha256(given.encode()).hexdigest()
    documents = list(drawn(open_source(request.source, spec, settings), found, number, seed=digest))
    name = f"sample-{digest[:8]}"
    key = f"{request.job_key}-{name}"
    place = state.root / _FOLDER
    place.mkdir(exist_ok=True, mode=0o700)
    source = place / f"{key}.jsonl"
    if not source.exists():  # resuming reads the very file
        with open(source, "wb", opener=private_opener) as file:
            file.write(b"".join(sampled_line(one, spec) for one in documents))
    record = {
        "job": request.job_key,
        "options": deciding_options(spec),
        "positions": {document.doc_id: document.position for document in documents},
        "sizes": {document.doc_id: len(document.body) for document in documents},
        "documents": found.total - len(found.refused),
        "size": found.size,
    }
    write_private(place / f"{key}.json", json.dumps(record))
    said = dict.fromkeys((*said_by_lines(spec), *FOR_ALL))
    return dataclasses.replace(
        request,
        out=f"{request.out.rstrip('/')}/{name}",
        job_key=key,
        given=dataclasses.replace(
            request.given,
            source_or_none=str(source),
            flags={**request.given.flags, **said, "response_format": "none"},  # lines have theirs
        ),
    )


def take_over(ledger: Books, job: Job, state: StateFolder, source: str, spec: JobSpec) -> int:
    """Give a new job the results of its samples; returns how many.

    Only where the options are the same and the document still reads as it was asked. Dead letters
    are tried again. The samples have paid for them, and keep that in their accounts.
    """
    from penstock_ledger import OutcomeStore

    taken: dict[str, tuple[str, Result]] = {}  # with the lane of its sample
    for path in sorted((state.root / _FOLDER).glob("*.json")):
        record = json.loads(path.read_bytes())
        if record["job"] == job.job_key and record["options"] == deciding_options(spec):
            found = _results(ledger, path, source, spec, record["positions"])
            taken |= {result.key.doc_id: (lane, result) for lane, result in found}
    for lane in {lane for lane, _ in taken.values()}:
        some = [_of(job, result) for its, result in taken.values() if its == lane]
        OutcomeStore(ledger.database, lane).settle(some, [])
    return len(taken)


class SampleRecord(NamedTuple):
    """A sample that was drawn here."""

    job_key: str
    documents: int  # of the whole source
    size: int  # bytes of all its requests
    sizes: Mapping[str, int]  # of each drawn document


def latest_record(state: Path, job_key: str, spec: JobSpec) -> SampleRecord | None:
    """Return the newest sample of this job with these options.

    It is None where there is none that knows sizes."""
    places = sorted(
        (state / _FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for path in places:
        record = json.loads(path.read_bytes())
        if (
            record["job"] == job_key
            and record["options"] == deciding_options(spec)
            and "sizes" in record
        ):
            return SampleRecord(path.stem, record["documents"], record["size"], record["sizes"])
    return None


def _results(
    ledger: Books, path: Path, source: str, spec: JobSpec, positions: Mapping[str, str]
) -> Iterator[tuple[str, Result]]:
    """Yield each result with the lane of the sample."""
    from penstock_ledger import JobNotFound
    from penstock_producer.accepting.sampling import sampled_line
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.sources import open_source

    try:
        sample = ledger.jobs.get(path.stem)
    except JobNotFound:
        return
    asked = {
        line["custom_id"]: line["body"]
        for line in map(json.loads, path.with_suffix(".jsonl").open("rb"))
    }
    reader = open_source(source, spec, ProducerSettings.load())
    reader.pin()
    for result in ledger.outcomes.results(sample.job_id):
        doc_id = result.key.doc_id
        now = reader.fetch(positions[doc_id])
        body = json.loads(sampled_line(now, spec))["body"]
        if (now.doc_id, body) == (doc_id, asked[doc_id]):
            yield sample.lane, result


def _of(job: Job, result: Result) -> Result:
    from msgspec import structs

    from penstock_ledger.model import ItemKey

    key = ItemKey(job.job_id, 1, result.key.doc_id)
    return structs.replace(result, key=key, calls=0, cost_microusd=0, unpriced=0, reason=TAKEN_OVER)


def _surveyed(source: str, spec: JobSpec, settings: ProducerSettings) -> Survey:
    """Survey the source. Raises UsageProblem for one without a usable document."""
    from penstock_producer.accepting.survey import survey
    from penstock_producer.sources import open_source

    found = survey(open_source(source, spec, settings), spec)
    if found.total == len(found.refused):
        raise UsageProblem(f"{source} holds no usable document to take a sample of")
    return found


def deciding_options(spec: JobSpec) -> dict[str, Any]:
    return {name: value for name, value in spec.to_json().items() if name not in _MAY_DIFFER}

"""`penstock dlq`: look at dead letters, take them out, try them again with something changed."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_cli import options
from penstock_cli.errors import UsageProblem

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import DeadLetter, Job

SHOWN_BODY_CHARS = 4000  # of a request or an answer on the terminal; --json and export have all of it

app = typer.Typer(no_args_is_help=True, help="Dead letters: list, show, export, and replay with changes.")

Reason = Annotated[str | None, typer.Option(help="Only dead letters with this reason.")]
Docs = Annotated[list[str] | None, typer.Option("--doc", metavar="ID", help="Only this document. Repeatable.")]


@app.command(name="list")
def list_letters(
    job: options.JobName,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """List the dead letters of a job: one line each, with what went wrong."""
    from rich.table import Table
    from rich.text import Text

    from penstock_cli.connect import books
    from penstock_cli.terminal import console as make_console
    from penstock_cli.text import argument, count, one_line

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        letters = list(islice(ledger.outcomes.dead_letters(found.job_id, reason=reason), limit))
        by_reason = ledger.outcomes.counts(found.job_id).dead_by_reason
        console = make_console()
        if as_json:
            for letter in letters:
                typer.echo(json.dumps(_as_json(letter)))
            return
        table = Table(
            "document", "reason", "tries", "status", "last error", box=None, pad_edge=False, header_style="dim"
        )
        table.columns[-1].overflow = "fold"
        for letter in letters:
            table.add_row(
                Text(one_line(letter.key.doc_id, 40)),
                Text(one_line(letter.reason, 30)),
                str(letter.attempts),
                str(letter.status_code or ""),
                Text(one_line(letter.last_error, 120)),
            )
        total = by_reason.get(reason, 0) if reason else sum(by_reason.values())
        if not total:
            console.print("no dead letters" + (f" with reason {one_line(reason)}" if reason else ""), markup=False)
            return
        console.print(table)
        key, option = argument(found.job_key), ledger.option()
        if len(letters) < total:
            console.print(f"{count(len(letters))} of {count(total)}; --limit shows more", style="dim")
        console.print(Text(f"look closer:  penstock dlq show {key} ID{option}"), style="dim", soft_wrap=True)
        console.print(Text(f"try again:    penstock dlq replay {key}{option}"), style="dim", soft_wrap=True)


@app.command()
def show(
    job: options.JobName,
    doc: Annotated[str | None, typer.Argument(metavar="ID", help="The document.")] = None,
    doc_option: Annotated[str | None, typer.Option("--doc", metavar="ID", help="The same, as an option.")] = None,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """Show one dead letter: its error, its request and the provider's last answer."""
    from rich.text import Text

    from penstock_cli.connect import books
    from penstock_cli.terminal import console as make_console

    doc_id = doc or doc_option
    if doc_id is None:
        raise UsageProblem("name the document: penstock dlq show JOB ID; `penstock dlq list JOB` shows their names")
    with books(state) as ledger:
        letter = _letter(ledger, ledger.jobs.get(job), doc_id)
    if as_json:
        typer.echo(json.dumps(_as_json(letter)))
        return
    console = make_console()
    for name, value in _shown(letter).items():
        console.print(Text.assemble((f"{name:<12}", "dim"), value), soft_wrap=True)


@app.command()
def export(
    job: options.JobName,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="A file, or s3://bucket/key.")],
    reason: Reason = None,
    state: options.StateOption = None,
) -> None:
    """Write the dead letters of a job as OpenAI Batch error lines."""
    from penstock_cli.connect import books
    from penstock_cli.files import write_errors
    from penstock_cli.text import count

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        written = write_errors(ledger, found, output, reason=reason)
    typer.echo(f"{count(written)} dead letters in {output}")


@app.command()
def replay(
    job: options.JobName,
    reason: Reason = None,
    doc: Docs = None,
    set_fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change the request: model=…, max_tokens=…. Repeatable."),
    ] = None,
    edit_prompt: Annotated[
        str | None,
        typer.Option("--edit-prompt", metavar="TEMPLATE", help="Wrap the text that was sent: 'Briefly: {prompt}'."),
    ] = None,
    state: options.StateOption = None,
) -> None:
    """Try dead letters again, as a new generation of the job. Nothing is overwritten."""
    from penstock_cli.connect import books
    from penstock_cli.text import count, safe
    from penstock_ledger.model import JobState

    overrides = _overrides(set_fields or [], edit_prompt)
    with books(state) as ledger:
        found = ledger.jobs.get(job)
        feed, number = ledger.jobs.replay(found.job_id, reason=reason, doc_ids=doc, overrides=overrides)
        redis = ledger.redis_if_running()
        if redis is not None:
            redis.set_job_state(found.job_id, JobState.RUNNING)
        typer.echo(f"{count(number)} documents of {safe(found.job_key)} go again as generation {feed.generation}")
        if state is not None and redis is None:
            typer.echo(f"process them with:  {run_again(ledger, found)}")


def run_again(ledger: Books, job: Job) -> str:
    """The `penstock run` command that goes on with a local job, as it was typed."""
    from penstock_cli.commandline import remembered

    assert ledger.state is not None, "only local jobs are run"
    return remembered(ledger.state, job.job_id)


def _overrides(set_fields: list[str], edit_prompt: str | None) -> dict[str, Any]:
    """What a replay changes, checked before anything moves. Raises UsageProblem and SpecError."""
    from penstock_cli.jobspec import parse_pairs
    from penstock_producer.overrides import Overrides

    overrides: dict[str, Any] = {}
    if set_fields:
        overrides["set"] = parse_pairs("--set", set_fields)
    if edit_prompt is not None:
        overrides["prompt"] = edit_prompt
    Overrides(overrides)
    return overrides


def _letter(ledger: Books, job: Job, doc_id: str) -> DeadLetter:
    from penstock_cli.text import argument, safe
    from penstock_ledger.model import DeadLetter

    found = ledger.outcomes.get(job.job_id, doc_id)
    if isinstance(found, DeadLetter):
        return found
    if found is not None:
        raise UsageProblem(f"document {safe(doc_id)} of {safe(job.job_key)} succeeded; it has no dead letter")
    raise UsageProblem(
        f"document {safe(doc_id)} of {safe(job.job_key)} has no outcome; `penstock dlq list {argument(job.job_key)}` "
        "shows those with a dead letter"
    )


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "doc_id": letter.key.doc_id,
        "generation": letter.key.generation,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "calls": letter.calls,
        "status_code": letter.status_code,
        "last_error": letter.last_error,
        "line": letter.line,
        "created_at": letter.created_at,
        "request": _decoded(letter.request),
        "response": _decoded(letter.response or b""),
    }


def _decoded(body: bytes) -> Any:
    """JSON as JSON, anything else as text, nothing as null."""
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def _shown(letter: DeadLetter) -> dict[str, str]:
    from penstock_cli.text import safe

    def body(content: bytes | None) -> str:
        if not content:
            return "none"
        text = safe(content.decode("utf-8", "replace"))
        return text if len(text) <= SHOWN_BODY_CHARS else f"{text[:SHOWN_BODY_CHARS]}… (--json shows all)"

    fields = {
        "document": letter.key.doc_id,
        "reason": letter.reason,
        "tries": f"{letter.attempts} ({letter.calls} calls)",
        "status": str(letter.status_code or "no answer"),
        "generation": str(letter.key.generation),
    }
    if letter.line:
        fields["source line"] = str(letter.line)
    shown = {name: safe(value) for name, value in fields.items()}
    return shown | {
        "last error": safe(letter.last_error),
        "request": body(letter.request),
        "response": body(letter.response),
    }

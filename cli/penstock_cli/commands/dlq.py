"""`penstock dlq`: look at dead letters, take them out, try them again with something changed.

What earlier replays of a job have changed travels on with its requests until it is unset.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_cli import command_help
from penstock_cli.errors import UsageProblem
from penstock_cli.job import options
from penstock_ledger.texts import Text

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import DeadLetter, Feed, Job
    from penstock_producer.errors import Problem

PROMPT = "prompt"

MAX_ID_CHARS = 512  # ids are shown whole, to be copied into the next command
MAX_GENERATIONS_SHOWN = 20  # of one document
# of a request or an answer on the terminal; --json and export have all of it
SHOWN_BODY_CHARS = 4000

app = typer.Typer(
    no_args_is_help=True, help="Dead letters: list, show, export, and replay with changes."
)

Reason = Annotated[str | None, typer.Option(help="Only dead letters with this reason.")]
Docs = Annotated[
    list[str] | None, typer.Option("--doc", metavar="ID", help="Only this document. Repeatable.")
]


def changes_in_force(feeds: Iterable[Feed]) -> dict[str, tuple[str, int]]:
    """Return by field what the replays have set it to, as text, and in which generation."""
    force: dict[str, tuple[str, int]] = {}
    for feed in feeds:
        for name in feed.overrides.get("unset") or ():
            force.pop(name, None)
        for name, value in (feed.overrides.get("set") or {}).items():
            force[name] = (_as_text(value), feed.generation)
        if feed.overrides.get(PROMPT) is not None:
            force[PROMPT] = (_as_text(feed.overrides[PROMPT]), feed.generation)
    return force


def explain_in_force(force: Mapping[str, tuple[str, int]]) -> str:
    """Return one sentence about the changes; empty where there are none."""
    if not force:
        return ""
    listed = ", ".join(
        f"{name}={value} (generation {generation})" for name, (value, generation) in force.items()
    )
    names = " ".join(f"--unset {name}" for name in force)
    return f"requests keep what replays have set: {listed}; {names} takes it back"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@app.command(name="list", epilog=command_help.DLQ_LIST)
def list_dead_letters(
    job: options.JobName,
    reason: Reason = None,
    generation: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Only dead letters of this generation, replayed ones included (the first is 1).",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """List the dead letters of a job: one line each, with what went wrong."""
    from penstock_cli.connect import books
    from penstock_producer.reporting.text import one_line

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        chosen = ledger.outcomes.dead_letters(found.job_id, reason=reason, generation=generation)
        letters = list(islice(chosen, limit))
        if as_json:
            for letter in letters:
                typer.echo(json.dumps(_as_json(letter)))
            return
        counts = (
            ledger.outcomes.counts(found.job_id)
            if generation is None
            else ledger.outcomes.counts_of(found.job_id, generation)
        )
        total = counts.dead_by_reason.get(reason, 0) if reason else counts.dead
        if total:
            _print_dead_letters(letters)
        else:
            typer.echo("no dead letters" + (f" with reason {one_line(reason)}" if reason else ""))
        _print_footer(ledger, found, shown=len(letters), total=total, generation=generation)


def _print_dead_letters(letters: list[DeadLetter]) -> None:
    from penstock_cli.show.terminal import print_aligned
    from penstock_producer.reporting.text import one_line

    print_aligned(
        ["document", "reason", "tries", "status", "last error"],
        [
            [
                one_line(letter.key.doc_id, MAX_ID_CHARS),
                one_line(letter.reason, 40),
                str(letter.attempts),
                str(letter.status_code or ""),
                one_line(letter.last_error, 120),
            ]
            for letter in letters
        ],
    )


def _print_footer(
    ledger: Books, job: Job, *, shown: int, total: int, generation: int | None
) -> None:
    """Print what to do next, and what is not shown."""
    from rich.text import Text

    from penstock_cli.show.terminal import console as make_console
    from penstock_producer.reporting.text import argument, count, safe

    key, option = argument(job.job_key), ledger.option()
    lines = [f"{count(shown)} of {count(total)}; --limit shows more"] if shown < total else []
    if total:
        lines.append(f"look closer:  penstock dlq show {key} ID{option}")
    if total and generation is None:
        lines.append(f"try again:    penstock dlq replay {key}{option}")
    if job.generation > 1 and generation is None:
        lines.append(
            f"earlier ones: penstock dlq list {key} --generation {job.generation - 1}{option}"
        )
        lines.append(explain_in_force(changes_in_force(ledger.jobs.feeds(job.job_id))))
    for line in filter(None, lines):
        make_console().print(Text(safe(line)), style="dim", soft_wrap=True)


@app.command(epilog=command_help.DLQ_SHOW)
def show(
    job: options.JobName,
    doc: Annotated[str | None, typer.Argument(metavar="ID", help="The document.")] = None,
    doc_option: Annotated[
        str | None, typer.Option("--doc", metavar="ID", help="The same, as an option.")
    ] = None,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """Show one dead letter: its error, its request and the provider's last answer."""
    from rich.text import Text

    from penstock_cli.connect import books
    from penstock_cli.show.terminal import console as make_console

    doc_id = doc or doc_option
    if doc_id is None:
        raise UsageProblem(
            "name the document: penstock dlq show JOB ID; `penstock dlq list JOB` shows their names"
        )
    with books(state) as ledger:
        found = ledger.jobs.get(job)
        letter = _letter(ledger, found, doc_id)
        earlier = _earlier(ledger, found, letter)
    if as_json:
        typer.echo(json.dumps(_as_json(letter)))
        return
    console = make_console()
    for name, value in (_shown(letter) | earlier).items():
        console.print(Text.assemble((f"{name:<12}", "dim"), value), soft_wrap=True)


@app.command(epilog=command_help.DLQ_EXPORT)
def export(
    job: options.JobName,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A file, s3://bucket/key, or - for standard output.",
        ),
    ],
    reason: Reason = None,
    state: options.StateOption = None,
) -> None:
    """Write the dead letters of a job as OpenAI Batch error lines."""
    from penstock_cli.connect import books
    from penstock_cli.files import STDOUT, write_errors
    from penstock_producer.reporting.text import count, safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        written = write_errors(ledger, found, output, reason=reason)
    typer.echo(f"{count(written)} dead letters in {safe(output)}", err=output == STDOUT)


@app.command(epilog=command_help.DLQ_REPLAY)
def replay(
    job: options.JobName,
    reason: Reason = None,
    doc: Docs = None,
    set_fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change the request: model=…, max_tokens=…, or a provider's own parameter as "
            "x.NAME=…. Stays in later replays. Repeatable.",
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help=(
                "Give a field back the value that the document had before its first replay; "
                "`prompt` is its text. Repeatable."
            ),
        ),
    ] = None,
    edit_prompt: Annotated[
        str | None,
        typer.Option(
            "--edit-prompt",
            metavar="TEMPLATE",
            help="Wrap the text that was sent: 'Briefly: {prompt}'.",
        ),
    ] = None,
    state: options.StateOption = None,
) -> None:
    """Try dead letters again, as a new generation of the job. Nothing is overwritten."""
    from penstock_cli.connect import books
    from penstock_producer.errors import SpecError
    from penstock_producer.reporting.advice import on_terminal
    from penstock_producer.reporting.text import count, safe

    overrides = _overrides(set_fields or [], unset or [], edit_prompt)
    with books(state) as ledger:
        found = ledger.jobs.get(job)
        try:
            done = ledger.operations.replay(found, reason=reason, doc_ids=doc, overrides=overrides)
        except SpecError as error:
            told = "\n".join(on_terminal(_as_flag(one)) for one in error.problems)
            raise UsageProblem(told) from error
        typer.echo(
            f"{count(done.documents)} documents of {safe(found.job_key)} go again as generation "
            f"{done.job.generation}"
        )
        kept = explain_in_force(changes_in_force(ledger.jobs.feeds(found.job_id)))
        if kept:
            typer.echo(safe(kept))
        if state is not None and ledger.redis_if_running() is None:
            command = run_again(ledger, found)
            typer.echo(f"process them with:  {command}")
            gone = _address_that_is_gone(command)
            if gone is not None:
                typer.echo(
                    f"nothing answers at {safe(gone)} now: start that server, or give another "
                    "--base-url. After `make demo`, `make demo` starts its provider and runs them"
                )


def _address_that_is_gone(command: str) -> str | None:
    """Return the `--base-url` of a command where it is of this machine, and no server is there."""
    from urllib.parse import urlsplit

    from penstock_cli.run.check import knock

    words = shlex.split(command)
    url = next((after for word, after in pairwise(words) if word == "--base-url"), "")
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    try:
        knock(url)
    except UsageProblem:
        return url
    return None


def run_again(ledger: Books, job: Job) -> str:
    """Return the `penstock run` command that goes on with a local job, as it was typed."""
    from penstock_cli.show.terminal import remembered

    assert ledger.state is not None, "only local jobs are run"
    return remembered(ledger.state, job.job_id)


def _overrides(set_fields: list[str], unset: list[str], edit_prompt: str | None) -> dict[str, Any]:
    """Return what a replay changes. Raises UsageProblem."""
    from penstock_cli.job.given import parse_pairs

    given = {
        "set": parse_pairs("--set", set_fields) if set_fields else None,
        "unset": unset or None,
        "prompt": edit_prompt,
    }
    return {name: value for name, value in given.items() if value is not None}


def _as_flag(problem: Problem) -> Text:
    """Write a problem of a replay in the words of the flags.

    ``/set/max_tokens`` was typed as ``--set max_tokens``.
    """
    name, _, rest = problem.pointer.lstrip("/").partition("/")
    flag = "--edit-prompt" if name == "prompt" else f"--{name}"
    return Text(f"{flag}{' ' + rest if rest else ''}: ", problem.message, "; ", problem.fix)


def _earlier(ledger: Books, job: Job, letter: DeadLetter) -> dict[str, str]:
    """Return why the document was dead before it was replayed, generation by generation."""
    from penstock_ledger.model import DeadLetter
    from penstock_producer.reporting.text import one_line

    reasons = {}
    for generation in range(letter.key.generation - 1, 0, -1)[:MAX_GENERATIONS_SHOWN]:
        before = ledger.outcomes.of_generation(job.job_id, generation, letter.key.doc_id)
        if isinstance(before, DeadLetter):
            reasons[f"in gen. {generation}"] = one_line(
                f"{before.reason}: {before.last_error}", 300
            )
    return reasons


def _letter(ledger: Books, job: Job, doc_id: str) -> DeadLetter:
    from penstock_ledger.model import DeadLetter
    from penstock_producer.reporting.text import argument, safe

    found = ledger.outcomes.get(job.job_id, doc_id)
    if isinstance(found, DeadLetter):
        return found
    if found is not None:
        raise UsageProblem(
            f"document {safe(doc_id)} of {safe(job.job_key)} succeeded; it has no dead letter"
        )
    raise UsageProblem(
        f"document {safe(doc_id)} of {safe(job.job_key)} has no outcome; those with a dead "
        f"letter:  penstock dlq list {argument(job.job_key)}{ledger.option()}"
    )


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return letter.to_json() | {
        "request": _decoded(letter.request),
        "response": _decoded(letter.response or b""),
    }


def _decoded(body: bytes) -> Any:
    """Return JSON as JSON, anything else as text, nothing as null."""
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def _shown(letter: DeadLetter) -> dict[str, str]:
    from penstock_producer.reporting.text import safe

    def body(content: bytes | None) -> str:
        if not content:
            return "none"
        text = safe(content.decode("utf-8", "replace"))
        return (
            text
            if len(text) <= SHOWN_BODY_CHARS
            else f"{text[:SHOWN_BODY_CHARS]}… (--json shows all)"
        )

    fields = {
        "document": letter.key.doc_id,
        "reason": letter.reason,
        "tries": f"{letter.attempts} ({letter.calls} calls)",
        "status": str(letter.status_code or "no answer"),
        "generation": str(letter.key.generation),
    }
    if letter.endpoint:
        fields["endpoint"] = letter.endpoint
    if letter.line:
        fields["source line"] = str(letter.line)
    shown = {name: safe(value) for name, value in fields.items()}
    return shown | {
        "last error": safe(letter.last_error),
        "request": body(letter.request),
        "response": body(letter.response),
    }

"""The help of each command: which options it shows, in which box, and an example or two.

`--help` has the usual options of a command, `--help-all` has every one. A command that takes the
flags of a table (job/flags.py) stands in ``USUAL`` and is made with ``cls=Boxed``; all its flags
work, whichever its help shows. Examples are fit to be pasted after a change of names.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperOption


def _examples(*commands: str) -> str:
    return "For example:\n\n" + "\n\n".join(f"  {command}" for command in commands)


RUN: Final = _examples(
    'penstock run tickets.jsonl --out results --prompt "Summarise: {text}" --model gpt-4o-mini '
    "--param max_tokens=200",
    "penstock run batch.jsonl --out s3://bucket/night --state /var/lib/penstock --base-url "
    "http://gpu:8000/v1",
    "penstock run night.yaml --param max_tokens=100",
    'penstock run tickets.jsonl --out results --prompt "Summarise: {text}" --model m '
    "--budget-usd 20 "
    "--usd-per-mtok-in 0.15 --usd-per-mtok-out 0.6",
)
SUBMIT: Final = _examples(
    'penstock submit s3://corpora/tickets.jsonl --job tickets --prompt "Summarise: {text}" --model '
    "gpt-4o-mini",
    'penstock submit tickets.jsonl --prompt "Summarise: {text}" --model m --response-schema '
    "answer.schema.json --deadline 8h",
    "penstock submit night.yaml",
    "penstock submit --from-job tickets --where reason=schema_mismatch --model large --job "
    "tickets-large",
)
SERVE: Final = _examples(
    "penstock serve --port 8080 --state serving --base-url https://api.openai.com/v1 --api-key-env "
    "OPENAI_API_KEY",
    "penstock serve --lane gpu --model Qwen/Qwen3-8B --state serving",
)
PREVIEW: Final = _examples(
    'penstock preview tickets.jsonl --prompt "Summarise: {text}" --model gpt-5-mini --param '
    "max_tokens=200 --rpm 5000",
    "penstock preview night.yaml -n 10",
)
PLAN: Final = _examples(
    "penstock plan --documents 100M --within 24h --tokens-in 400 --tokens-out 100 --model "
    "gpt-5-mini --rpm 30000",
    'penstock plan tickets.jsonl --within 8h --prompt "Say: {text}" --model gpt-5-mini --from-job '
    "trial --state trial/.penstock",
)
STATUS: Final = _examples(
    "penstock status tickets --watch", "penstock status tickets --state results/.penstock --json"
)
JOBS: Final = _examples("penstock jobs --limit 10")
REPORT: Final = _examples("penstock report tickets --json")
COSTS: Final = _examples("penstock costs --since 30d", "penstock costs --by lane --json")
RESULTS: Final = _examples(
    "penstock results tickets -o output.jsonl",
    "penstock results tickets -o - | head",
    "penstock results tickets -o labels.parquet",
    "penstock results tickets -o so-far.jsonl --partial",
    "penstock results tickets --into postgresql://me@db/shop --table labels",
)
PAUSE: Final = _examples('penstock pause tickets --reason "the account is topped up tomorrow"')
RESUME: Final = _examples("penstock resume tickets")
CANCEL: Final = _examples("penstock cancel tickets")
MOVE: Final = _examples('penstock move tickets api --reason "it is needed tonight"')
PURGE: Final = _examples("penstock purge tickets")
MIGRATE: Final = _examples(
    "PENSTOCK_DATABASE_URL=postgresql://penstock@db/penstock penstock migrate --wait 120"
)
WORKER: Final = _examples(
    "penstock worker --lane api -c 256",
    "penstock worker --lane gpu --model /models/llama",
    "penstock worker --lane gpu --model /models/llama --gpus all --tensor-parallel 2",
)
CONTROL: Final = _examples("penstock control")
FLOWER: Final = _examples("penstock flower --port 5555")
GATEWAY: Final = _examples("penstock gateway --port 8600", "penstock gateway --host 0.0.0.0")
KEYS_CREATE: Final = _examples(
    "penstock keys create operations --scope admin",
    "penstock keys create night-batch --tenant search --requests-per-minute 600 --budget-usd 200 "
    "--expires 90d",
)
KEYS_LIST: Final = _examples("penstock keys list")
KEYS_REVOKE: Final = _examples("penstock keys revoke key_4c1f0e9a2b7d5e8f3a6c1b90")
LIMITS: Final = _examples("penstock limits --watch", "penstock limits --lift default")
DOCTOR: Final = _examples(
    "penstock doctor",
    "penstock doctor --state results/.penstock",
    "penstock doctor --report penstock-report.txt",
)
CHAOS: Final = _examples(
    "penstock chaos --faults kill,flushall",
    "penstock chaos --minutes 30 --lane batch --seed 7",
)
COMPLETION: Final = _examples(
    "penstock completion bash > ~/.local/share/bash-completion/completions/penstock",
    "echo 'source <(penstock completion zsh)' >> ~/.zshrc",
    "penstock completion fish > ~/.config/fish/completions/penstock.fish",
)
SIMULATE: Final = _examples("penstock simulate --port 8080 --rpm 600")
DLQ_LIST: Final = _examples(
    "penstock dlq list tickets --reason context_overflow",
    "penstock dlq list tickets --generation 1",
)
DLQ_SHOW: Final = _examples("penstock dlq show tickets ticket-17")
DLQ_EXPORT: Final = _examples("penstock dlq export tickets -o errors.jsonl")
DLQ_REPLAY: Final = _examples(
    "penstock dlq replay tickets --reason context_overflow --set model=large --set max_tokens=200",
    "penstock dlq replay tickets --unset max_tokens",
)
REFUSED: Final = _examples("penstock refused --limit 5")
SCHEDULE_ADD: Final = _examples(
    'penstock schedule add "0 1 * * *" s3://corpora/tickets.jsonl --timezone Europe/Berlin '
    '--prompt "Sum up: {text}" --model m',
    'penstock schedule add "*/30 6-20 * * MON-FRI" /data/in.jsonl --name office-hours --catch-up '
    "skip --model m",
    'penstock schedule add "*/5 * * * *" s3://corpora/incoming/ --new-files --prompt "Sum up: '
    '{text}" --model m',
    'penstock schedule add "0 4 * * *" --name again --from-schedule tickets --where status=dead '
    "--model large",
)
SCHEDULE_NOTIFY: Final = _examples("penstock schedule notify incoming < notification.json")
SCHEDULE_LIST: Final = _examples("penstock schedule list", "penstock schedule list tickets")
SCHEDULE_PAUSE: Final = _examples("penstock schedule pause tickets")
SCHEDULE_RESUME: Final = _examples("penstock schedule resume tickets")
SCHEDULE_REMOVE: Final = _examples("penstock schedule remove tickets")


# In this order; each with the flags that it shows, by their names without dashes.
BOXES: Final[Mapping[str, str]] = {
    "Documents": "spec format sheet table query query-file encoding id-field from-job "
    "from-schedule where max-bad-rows image-field audio-field messages-field dedup",
    "The request": "prompt prompt-file template system system-file examples truncate tokenizer "
    "compress-prompt model endpoint param param-field max-prompt-tokens on-overflow "
    "response-format response-schema schema-repairs embedding-dtype preprocess postprocess",
    "Answers": "out output-format keep-columns order escape-formulas into into-table into-id",
    "Money and time": "budget-usd over-budget usd-per-mtok-in usd-per-mtok-out deadline "
    "stop-at-dead stop-at-usd-per-doc cache prompt-cache tier",
    "Failures": "max-attempts timeout fallback fallback-on degrade escalate",
    "The provider": "api base-url api-key-env rpm tpm itpm otpm profile provider",
    "How it is inferred": "lane lanes route batch-max-requests batch-poll batch-files prefix-order",
    "Shares of a fleet": "priority weight tenant feeders",
    "When": "name timezone catch-up overlap new-files events drift drift-field",
    "The plan": "documents within job-workers tokens-in tokens-out latency seed",
    "What is shown": "dry-run rows first json",
    "This machine": "job state workers gpus concurrency sample no-progress wait port host",
}
HELP: Final = "Help"
ALL: Final = "help-all"
USUAL_BOX: Final = "The usual options"

# Ten at most: what a first job of one's own takes, in the order in which it is thought of.
USUAL: Final[Mapping[str, str]] = {
    "run": "prompt model base-url api-key-env id-field out output-format budget-usd sample dry-run",
    "submit": "prompt model id-field job deadline budget-usd output-format lane provider priority",
    "preview": "prompt model id-field param usd-per-mtok-in usd-per-mtok-out rpm rows first json",
    "plan": "documents within model prompt rpm tpm tokens-in tokens-out from-job workers",
    "add": "name prompt model id-field timezone catch-up new-files from-schedule output-format "
    "deadline",
    "serve": "port state base-url api-key-env api rpm tpm lane model host",
}


def box_of(flag: str) -> str | None:
    """Return the box in which `--help-all` shows a flag."""
    return next((box for box, flags in BOXES.items() if flag in flags.split()), None)


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        f"--{ALL}",
        is_eager=True,
        callback=_show_all,
        help="Show every option, in boxes by what they are for, and exit.",
    ),
]


class Boxed(TyperCommand):
    """A command whose help has the usual options, and with `--help-all` all of them in boxes."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of a copy that has the options to show, in their order."""
        shown = copy.copy(self)
        shown.params = list(_arranged(str(self.name), self.get_params(ctx), ALL in ctx.meta))
        shown.add_help_option = False  # it is among them
        TyperCommand.format_help(shown, ctx, formatter)


def _arranged(command: str, given: Sequence[Any], show_all: bool) -> Iterator[Any]:
    """Yield the arguments, the usual options, all others box by box, and the help's own."""
    usual = USUAL[command].split()
    options = {_name(one): one for one in given if isinstance(one, TyperOption)}
    yield from (one for one in given if not isinstance(one, TyperOption))
    yield from (_put(options[name], USUAL_BOX) for name in usual)
    if show_all:
        order = [*BOXES, None]
        rest = (name for name in options if name not in (*usual, ALL, "help"))
        for name in sorted(rest, key=lambda name: order.index(box_of(name))):
            yield _put(options[name], box_of(name))
    yield from (_put(options[name], HELP) for name in (ALL, "help"))


def _name(option: TyperOption) -> str:
    return max(option.opts, key=len).removeprefix("--")


def _put(option: TyperOption, box: str | None) -> TyperOption:
    placed = copy.copy(option)
    placed.rich_help_panel = box
    return placed

"""An example or two for the help of each command, fit to be pasted after a change of names."""

from __future__ import annotations

from typing import Final


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
DOCTOR: Final = _examples("penstock doctor", "penstock doctor --state results/.penstock")
CHAOS: Final = _examples(
    "penstock chaos --faults kill,flushall",
    "penstock chaos --minutes 30 --lane batch --seed 7",
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

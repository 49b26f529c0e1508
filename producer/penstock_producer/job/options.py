"""The options of a job, spelled once: `JobSpec`'s fields, flags, and docs/job-options.md.

Light to import: no pydantic and no store, because a command line reads the table before it does
anything else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock_producer.job.endpoints import CHAT
from penstock_producer.job.lanes import AUTO, AUTO_LANES, DEFAULT_LANE, lanes_in_words
from penstock_producer.job.sinks import tables_in_words
from penstock_producer.source_formats import formats_in_words

__all__ = [
    "DEFAULT_ENGINES",
    "DEFAULT_WORKERS",
    "OPTIONS",
    "RUN_OPTIONS",
    "SINK_FIELDS",
    "STOP_FIELDS",
    "FlagForm",
    "Option",
    "seconds_of",
]

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d)", re.ASCII)
_PLAIN = re.compile(r"\d+(\.\d+)?", re.ASCII)
_MAX_CHARS: Final = 100


def seconds_of(text: str) -> float:
    """Return ``90``, ``90s``, ``1h30m`` or ``2d`` in seconds.

    Raises ValueError, which says how durations are written.
    """
    compact = text[: _MAX_CHARS + 1].strip().lower().replace(" ", "")
    if len(text) > _MAX_CHARS:
        compact = ""
    if _PLAIN.fullmatch(compact) is not None:
        seconds = float(compact)
    elif compact and _PART.sub("", compact) == "":
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(compact))
    else:
        raise ValueError("is not a duration; write seconds, or units such as 90s, 30m, 1h30m or 2d")
    if seconds <= 0:
        raise ValueError("must be longer than 0 s")
    return seconds


class FlagForm(StrEnum):
    """The form of an option on a command line."""

    TEXT = "text"
    WHOLE = "whole number"
    NUMBER = "number"
    DURATION = "duration"  # 90s, 30m, 1h30m
    ROWS = "number or share"  # 100, or 1%
    PAIRS = "name=value"  # repeated
    FILE = "file"  # of JSON
    LINES = "file of lines"  # of JSON, one value each
    LIST = "text, repeated"
    NAMES = "names with commas between them"
    SWITCH = "switch"  # --x or --no-x


class Option(NamedTuple):
    """One field of the spec, and its flag."""

    field: str
    help: str  # one sentence, for people who type flags and for those who write specs
    default: Any = None  # the spec's
    form: FlagForm = FlagForm.TEXT
    flag: str = ""  # where it is not the field's name
    metavar: str | None = None
    typed: str | None = None  # the default as a flag shows it, where that is another text
    left_to_lane: bool = False  # a flag that is left out lets the lane decide
    from_file: bool = False  # a second flag, with -file at its end, names a text file that holds it

    @property
    def name(self) -> str:
        """The flag's name, without its dashes."""
        return self.flag or self.field.replace("_", "-")


_TABLE: Final = (
    Option(
        "lane",
        f"How documents are inferred: {lanes_in_words('or')}; or {AUTO}: the cheapest of its lanes "
        "that is expected to meet the deadline, decided again while the job runs; docs/lanes.md.",
        DEFAULT_LANE,
    ),
    Option(
        "lanes",
        "The lanes that the job may go to, in the order of preference, e.g. batch,api; left out: "
        f"the lane alone, and for {AUTO} {','.join(AUTO_LANES)}.",
        form=FlagForm.NAMES,
        metavar="LANE,…",
    ),
    Option("model", "The model, for lines that name none."),
    Option(
        "endpoint",
        "The path of the request at the provider (left out: /v1/chat/completions; lane embed: "
        "/v1/embeddings).",
        CHAT,
        left_to_lane=True,
    ),
    Option(
        "prompt",
        'Template over the fields of a plain record: "Summarise: {text}", {field|default:"none"} '
        "where it may be absent; "
        "left out, documents are OpenAI Batch lines.",
        from_file=True,
    ),
    Option(
        "template",
        "How the prompt is read: fields has {column} only, jinja has {{ column }}, loops and "
        "conditions; docs/prompts.md.",
        "fields",
    ),
    Option("system", "A system message before the prompt.", from_file=True),
    Option(
        "messages_field",
        "A column that holds the chat messages, each with role and content, as a list or as JSON "
        "text; in the place of a prompt.",
    ),
    Option(
        "examples",
        "Examples that go before each document, from a file of JSON Lines: input and output, or "
        "messages; docs/prompts.md.",
        form=FlagForm.LINES,
        metavar="FILE",
    ),
    Option(
        "truncate",
        "Cut the text of a column before it goes into the prompt, e.g. text=8000 (characters: "
        "their beginning), text=8000:tail (their end), text=8000:ends (both) or text=2000t "
        "(tokens); rows that were cut are counted.",
        form=FlagForm.PAIRS,
    ),
    Option(
        "tokenizer",
        "What counts the tokens of truncate: a tokenizer.json, or the folder of a model that has "
        "one, under the same path on every machine; left out, they are estimated from characters.",
        metavar="FILE",
    ),
    Option(
        "compress_prompt",
        "Send runs of blanks as one blank and runs of blank lines as one, but not in code fences "
        "and quoted lines.",
        False,
        FlagForm.SWITCH,
    ),
    Option(
        "image_fields",
        "A column that names images, which go behind the prompt: https:// addresses are passed on, "
        "files beside the source and s3:// objects are put into the request; docs/prompts.md.",
        form=FlagForm.LIST,
        flag="image-field",
        metavar="COLUMN",
    ),
    Option(
        "audio_fields",
        "A column that names sounds: files beside the source and s3:// objects, put into the "
        "request.",
        form=FlagForm.LIST,
        flag="audio-field",
        metavar="COLUMN",
    ),
    Option(
        "id_field",
        "The field of a plain record that names the document; @row where none does: the number of "
        "its row.",
        "id",
    ),
    Option(
        "format",
        f"What the source holds: {formats_in_words()}; left out, names say it, or the first bytes.",
    ),
    Option(
        "table",
        "The table that a database as the source is read from, e.g. tickets or sales.tickets.",
    ),
    Option(
        "query",
        "The SELECT that a database as the source is read by, in the place of a table.",
        from_file=True,
    ),
    Option("sheet", "The sheet of an Excel workbook; left out, its first one.", metavar="NAME"),
    Option(
        "encoding",
        "The encoding of CSV, TSV and texts that is not UTF-8, e.g. cp1252, latin-1 or shift_jis.",
    ),
    Option(
        "params",
        "A request parameter, e.g. max_tokens=200 or temperature=0; one of the provider's own is "
        "x.NAME.",
        form=FlagForm.PAIRS,
        flag="param",
    ),
    Option(
        "param_fields",
        "A request parameter from a column of each plain record, e.g. max_tokens=length; where the "
        "column is absent or null, the job's own value counts.",
        form=FlagForm.PAIRS,
        flag="param-field",
    ),
    Option("max_attempts", "Attempts per document, the first included.", 4, FlagForm.WHOLE),
    Option(
        "timeout_s",
        "Time for one request, e.g. 120s.",
        120.0,
        FlagForm.DURATION,
        flag="timeout",
        typed="120s",
    ),
    Option(
        "deadline_s",
        "Time for the whole job from its submit, e.g. 8h or 90m; documents not done by then are "
        "dead letters.",
        form=FlagForm.DURATION,
        flag="deadline",
    ),
    Option(
        "budget_usd",
        "Pause the job before a request for which the rest of this budget may not be enough; needs "
        "a known price.",
        form=FlagForm.NUMBER,
    ),
    Option(
        "over_budget",
        "What to do where the job may cost more than its budget, as its first documents say: warn, "
        "or refuse it.",
        "warn",
    ),
    Option(
        "stop_at_dead",
        "Pause the job where so many of its latest documents are dead letters, or of their first "
        "answers were refused by its own checks: a share, or off; from the hundredth document on.",
        "50%",
        metavar="SHARE|off",
    ),
    Option(
        "stop_at_usd_per_doc",
        "Pause the job where its latest documents cost more than this each; needs a known price.",
        form=FlagForm.NUMBER,
    ),
    Option(
        "tier",
        "The provider's service tier for calls in real time: flex (half the price at OpenAI and "
        "Gemini; a document that it has no room for is asked for at the standard price at once), "
        "standard or priority; lines that name one keep it.",
        metavar="flex|standard|priority",
    ),
    Option(
        "max_prompt_tokens",
        "A longer prompt is a dead letter before it is sent; tokens are estimated, one for each "
        "four bytes of the request.",
        form=FlagForm.WHOLE,
    ),
    Option(
        "max_bad_rows",
        "Unusable rows to accept as dead letters: a number or a share.",
        "1%",
        FlagForm.ROWS,
    ),
    Option(
        "priority",
        "urgent goes before queued documents, low gets a small share while others run: urgent, "
        "normal or low.",
        "normal",
    ),
    Option(
        "weight",
        "The job's share of the fleet among its tenant's jobs: 2 gets twice as much as 1.",
        1.0,
        FlagForm.NUMBER,
    ),
    Option(
        "tenant",
        "The job's tenant: tenants share the fleet evenly; all jobs without one count as one "
        "tenant.",
    ),
    Option(
        "preprocess",
        "Called in the workers with each item before it is sent; docs/hooks.md.",
        metavar="MODULE:FUNCTION",
    ),
    Option(
        "postprocess", "Called with each answer before it is stored.", metavar="MODULE:FUNCTION"
    ),
    Option(
        "on_overflow",
        "What to do with a prompt longer than the model's context (gpu and embed lanes): fail, "
        "shrink max_tokens, or trim the prompt as well.",
        "fail",
    ),
    Option(
        "embedding_dtype",
        "The numbers of the vectors that the embed lane makes: float32, float16, int8, binary or "
        "ubinary, where the request has no output_dtype of its own; docs/embed.md.",
    ),
    Option(
        "prefix_order",
        "Feed prompts with equal beginnings together, for the engine's prefix cache; left out: on "
        "in gpu jobs with a prompt.",
        form=FlagForm.SWITCH,
    ),
    Option(
        "feeders",
        "Into how many parts the source is split at most, each read by a feeder of its own in any "
        "control process; left out, by its size.",
        form=FlagForm.WHOLE,
    ),
    Option(
        "response_schema",
        "A JSON schema that the text of every answer must satisfy: a file, or a Pydantic model by "
        "its import path, package.module:Model.",
        form=FlagForm.FILE,
        metavar="FILE|MODULE:MODEL",
    ),
    Option(
        "response_format",
        "What each request that has no response_format of its own asks for: json_schema (the "
        "response_schema), json_object, none (answers are checked only), or auto: the schema, "
        "where the endpoint has a field for it.",
        "auto",
    ),
    Option(
        "schema_repairs",
        "How often a document is asked again, with its answer and what is wrong with it, when the "
        "answer does not satisfy response_schema; 0 repeats the request once as it was.",
        2,
        FlagForm.WHOLE,
    ),
    Option(
        "fallback",
        "A model that is asked before a document is a dead letter, in their order; PROVIDER/MODEL "
        "for one of another configured provider; in lanes that host models, one that workers of "
        "the lane serve.",
        form=FlagForm.LIST,
        metavar="MODEL",
    ),
    Option(
        "fallback_on",
        "A reason of a dead letter that goes to fallback instead; left out: answer_cut, "
        "content_filter, context_overflow, invalid_result and schema_mismatch.",
        form=FlagForm.LIST,
        metavar="REASON",
    ),
    Option(
        "routes",
        "A rule by which documents take another model, as lang=de -> model=large, or "
        '@length>8000 -> model=long max_tokens=500, subject~"refund|return" -> tier=flex, '
        "else -> refuse; docs/quality.md.",
        form=FlagForm.LIST,
        flag="route",
        metavar="RULE",
    ),
    Option(
        "escalate",
        "Ask another model after the first where its answer says so, as score<0.5 -> "
        "model=large; missing=escalate behind it: also where the answer has no such field.",
        metavar="RULE",
    ),
    Option(
        "degrade",
        "Ask documents that begin after a moment otherwise, as model=small at 80% of deadline, or "
        "max_tokens=100 at 90% of budget; in their order.",
        form=FlagForm.LIST,
        metavar="RULE",
    ),
    Option(
        "dedup",
        "Send equal requests of the job once: on where the answer would be the same (embeddings, "
        "temperature 0), always, or off; docs/cache.md.",
        "off",
    ),
    Option(
        "cache_s",
        "Take answers to equal requests of the tenant's earlier jobs that are no older than this, "
        "e.g. 24h; 1m to 30d.",
        form=FlagForm.DURATION,
        flag="cache",
    ),
    Option(
        "prompt_cache",
        "Use the provider's prompt cache for beginnings that documents share: on (refused where "
        "that cannot be), auto (where it saves money), explicit (on, with caches of Gemini that "
        "are paid for by the hour), or off; docs/prompt-cache.md.",
        "off",
        metavar="auto|on|explicit|off",
    ),
    Option(
        "batch_max_requests",
        "Lane batch: requests of one provider batch at most; left out, as many as the provider "
        "takes.",
        form=FlagForm.WHOLE,
    ),
    Option(
        "batch_poll_s",
        "Lane batch: how often a batch is looked at, e.g. 1m; left out, every few seconds at first "
        "and every two minutes later.",
        form=FlagForm.DURATION,
        flag="batch-poll",
    ),
    Option(
        "batch_files",
        "Lane batch: what becomes of a batch's files at the provider once its answers are stored: "
        "keep or delete.",
        "keep",
    ),
    Option(
        "output_format",
        f"The results as a table as well, with a row for every document: {tables_in_words()}; "
        "jsonl adds none.",
    ),
    Option(
        "keep_columns",
        "Tables: the columns of the source that stand before the answers: all, none, or their "
        "names, as a,b; the id's is always among them.",
        "all",
        metavar="all|none|a,b",
    ),
    Option(
        "order",
        "Tables at the end of a job: rows in the order of the source, or as they were done, which "
        "has the answers alone.",
        "source",
        metavar="source|done",
    ),
    Option(
        "escape_formulas",
        "CSV: an apostrophe in front of what a spreadsheet would run.",
        form=FlagForm.SWITCH,
    ),
    Option(
        "into",
        "A database that results are written into, by id: sqlite:///file or postgresql://… without "
        "a password, or env:NAME, the variable that holds the URL where the writing process runs.",
        metavar="URL",
    ),
    Option(
        "into_table",
        "The table that results are written into; made where there is none.",
        metavar="T",
    ),
    Option(
        "into_id",
        "The column of that table that names the document; id is the source's own in a table "
        "that is made.",
        "id",
        metavar="COLUMN",
    ),
    Option(
        "provider",
        "Which of the configured providers answers, by its name in penstock.toml.",
        "default",
    ),
)

OPTIONS: Final[Mapping[str, Option]] = {option.field: option for option in _TABLE}
"""By the spec's field, in the order of the flags."""

STOP_FIELDS: Final = ("stop_at_dead", "stop_at_usd_per_doc")
"""The bounds of a stop-loss, which a job may get others of while it goes on."""

SINK_FIELDS: Final = frozenset(
    {"output_format", "keep_columns", "order", "escape_formulas", "into", "into_table", "into_id"}
)
"""Where results go, which decides nothing about what they are."""

# one goes on while the other restarts; a single one already keeps up with most providers
DEFAULT_WORKERS: Final = 2
# of lanes with a model of their own: each worker loads it and takes the whole machine
DEFAULT_ENGINES: Final = 1

RUN_OPTIONS: Final[Mapping[str, str]] = {
    "out": "Folder, or s3://bucket/prefix (also gs://, az://), for the result files.",
    "state": "Folder of the queue and the ledger (default: OUT/.penstock).",
    "workers": (
        f"Worker processes (default: {DEFAULT_WORKERS}; with a model in them: {DEFAULT_ENGINES})."
    ),
    "gpus": (
        "gpu: a worker for each GPU, or group of one engine: all, how many (2), or which (0,1)."
    ),
    "concurrency": "Requests in flight per worker process.",
    "sample": (
        "Only so many documents, drawn at random, as a job of its own in OUT/sample-…, and what it "
        "says of all; the run of all takes its results over."
    ),
    "no_progress": "Lines instead of a live panel.",
    "wait": "Where another run works in the same state folder, wait until it has ended.",
    "api": (
        "The API that the provider speaks: openai, anthropic, gemini, bedrock or vertex; left out, "
        "as its settings say, else openai."
    ),
    "base_url": "The provider's address; left out, that of its API's own provider.",
    "api_key_env": "The environment variable that holds the API key.",
    "profile": (
        "How the provider meters: openai, anthropic, vllm, …; left out, its address decides."
    ),
    "rpm": "Requests per minute.",
    "tpm": "Tokens per minute, in and out together.",
    "itpm": "Input tokens per minute, where the provider limits them apart.",
    "otpm": "Output tokens per minute, likewise.",
    "usd_per_mtok_in": "Price of a million input tokens.",
    "usd_per_mtok_out": "Price of a million output tokens.",
}
"""What `penstock run` takes beside the options of a job, by the field's name, in words for people:
its flags, and the section `run` of a job spec file. `--dry-run` is not here: it is about one look
at the job, not about the job."""

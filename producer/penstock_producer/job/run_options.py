"""What `penstock run` takes beside the options of a job, spelled once: its flags and the section `run` of a job spec file.

Light to import, as options.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["DEFAULT_ENGINES", "DEFAULT_WORKERS", "RUN_OPTIONS"]

DEFAULT_WORKERS: Final = 2  # one goes on while the other restarts; a single one already keeps up with most providers
DEFAULT_ENGINES: Final = 1  # of lanes with a model of their own: each worker loads it and takes the whole machine

RUN_OPTIONS: Final[Mapping[str, str]] = {
    "out": "Folder, or s3://bucket/prefix (also gs://, az://), for the result files.",
    "state": "Folder of the queue and the ledger (default: OUT/.penstock).",
    "workers": f"Worker processes (default: {DEFAULT_WORKERS}; with a model in them: {DEFAULT_ENGINES}).",
    "concurrency": "Requests in flight per worker process.",
    "sample": (
        "Only so many documents, drawn at random, as a job of its own in OUT/sample-…, and what it says of all; "
        "the run of all takes its results over."
    ),
    "no_progress": "Lines instead of a live panel.",
    "api": "The API that the provider speaks: openai, anthropic or gemini; left out, as its settings say, else openai.",
    "base_url": "The provider's address; left out, that of its API's own provider.",
    "api_key_env": "The environment variable that holds the API key.",
    "profile": "How the provider meters: openai, anthropic, vllm, …; left out, its address decides.",
    "rpm": "Requests per minute.",
    "tpm": "Tokens per minute, in and out together.",
    "itpm": "Input tokens per minute, where the provider limits them apart.",
    "otpm": "Output tokens per minute, likewise.",
    "usd_per_mtok_in": "Price of a million input tokens.",
    "usd_per_mtok_out": "Price of a million output tokens.",
}
"""By the field's name, in words for people. `--dry-run` is not here: it is about one look at the job, not about the job."""

"""Embeddings into PostgreSQL: a table of texts gets its column of vectors, and a question finds the
nearest texts.

    python examples/embeddings.py                     # a private PostgreSQL (pip install pgserver), a simulated provider
    VECTORS_URL=postgresql://me@db/search python examples/embeddings.py \\
        --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY --model
        text-embedding-3-small

The same table is the source and the place of the answers. With pgvector the column is a `vector`
with an index, without it an array. The texts are docstrings of Python's standard library. (Vectors
of the simulated provider are as long as real ones, and have no meaning: with it the nearest texts
are any.)
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import urllib.request
from itertools import islice
from pathlib import Path

import psycopg
from corpus import documents
from provider import flags_of, provider_of, run
from psycopg import sql

# commands get the name of the variable: an address has a password, and commands are visible to
# others
URL = "VECTORS_URL"
DIMENSIONS = 256
QUESTION = "How do I pack files into one compressed archive?"
WITH_PGVECTOR = (
    "SELECT id, 1 - (embedding <=> %s::vector) AS likeness FROM texts ORDER BY embedding <=> "
    "%s::vector LIMIT 3"
)
WITH_ARRAYS = """\
SELECT id, (SELECT sum(a * b) FROM unnest(embedding, %s::real[]) AS both_of(a, b)) AS likeness
FROM texts ORDER BY likeness DESC NULLS LAST LIMIT 3"""


def main() -> int:
    parser = flags_of(__doc__, "example-embeddings", docs=60, models=("sim-embedding",))
    parser.add_argument("--question", default=QUESTION)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if URL not in os.environ:
        os.environ[URL] = private_postgres(asked.out / "postgres")
    with psycopg.connect(os.environ[URL], autocommit=True) as database:
        has_pgvector = make_table(database, asked.docs)
        with provider_of(asked) as provider:
            run(
                f"env:{URL}",
                "--table",
                "texts",
                "--out",
                str(asked.out / "answers"),
                "--job",
                "embeddings",
                *provider,
                "--endpoint",
                "/v1/embeddings",
                "--model",
                asked.model[0],
                "--prompt",
                "{content}",
                "--param",
                f"dimensions={DIMENSIONS}",
                "--into",
                f"env:{URL}",
                "--into-table",
                "texts",
            )
            asked_for = vector_of(asked.question, provider, asked.model[0])
        if has_pgvector:
            database.execute(
                "CREATE INDEX IF NOT EXISTS texts_nearest ON texts USING hnsw (embedding "
                "vector_cosine_ops)"
            )
            nearest = database.execute(WITH_PGVECTOR, [json.dumps(asked_for)] * 2).fetchall()
        else:
            nearest = database.execute(WITH_ARRAYS, [asked_for]).fetchall()
        (filled,) = database.execute("SELECT count(embedding) FROM texts").fetchone() or (0,)
    print(
        f"{filled} texts have a vector ({'pgvector' if has_pgvector else 'an array'}). Nearest to "
        f"{asked.question!r}:"
    )
    for name, likeness in nearest:
        print(f"  {likeness:.2f}  {name}")
    return 0


def private_postgres(folder: Path) -> str:
    """A PostgreSQL with pgvector from a wheel. It ends with this program; its files stay."""
    try:
        from pgserver.postgres_server import get_server
    except ImportError:
        raise SystemExit(
            f"no PostgreSQL: set {URL}=postgresql://…, or `pip install pgserver` for a private one"
        ) from None
    return str(get_server(folder, cleanup_mode="stop").get_uri())


def make_table(database: psycopg.Connection, limit: int) -> bool:
    """The table of texts with an empty column of vectors; returns whether that is one of
    pgvector."""
    known = database.execute(
        "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
    ).fetchone()
    if known:
        database.execute("CREATE EXTENSION IF NOT EXISTS vector")
    vector = sql.SQL("vector({})").format(sql.Literal(DIMENSIONS))
    column = vector if known else sql.SQL("real[]")
    table = sql.SQL(
        "CREATE TABLE IF NOT EXISTS texts (id text PRIMARY KEY, content text NOT NULL, embedding {})"
    )
    database.execute(table.format(column))
    rows = [
        (one["id"], one["text"])
        for one in islice(documents(Path(sysconfig.get_path("stdlib"))), limit)
    ]
    with database.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO texts (id, content) VALUES (%s, %s) ON CONFLICT DO NOTHING", rows
        )
    (kind,) = database.execute("SELECT pg_typeof(embedding)::text FROM texts").fetchone() or ("",)
    return str(kind) == "vector"


def vector_of(question: str, provider: list[str], model: str) -> list[float]:
    """One question is asked at once, of the model that made the vectors."""
    flags = dict(zip(provider[::2], provider[1::2], strict=True))
    body = {"model": model, "input": question, "dimensions": DIMENSIONS}
    key = os.environ.get(flags.get("--api-key-env", ""), "unused")
    request = urllib.request.Request(
        f"{flags['--base-url']}/embeddings",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [float(number) for number in json.load(answer)["data"][0]["embedding"]]


if __name__ == "__main__":
    sys.exit(main())

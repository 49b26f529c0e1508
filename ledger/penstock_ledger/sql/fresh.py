"""The schema of an empty SQLite file, made at once: what all migrations together would make of it.

Alembic takes a tenth of the start of a `penstock run`, and most of those start with an empty
ledger.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, inspect, text

from penstock_ledger.sql.tables import HEAD, metadata

KNOWN_COST: Final = """CASE WHEN unpriced > 0 OR (unpriced IS NULL AND calls > 0 AND cost_microusd = 0)
            THEN NULL ELSE cost_microusd END AS cost_microusd"""
"""Of an outcome: NULL where no price is known of one of its answers; a release before this did not
say so."""

VIEWS: Final = (
    f"""
CREATE VIEW results AS
SELECT job_id, generation, doc_id, status_code, request_id, model, finish_reason, prompt_tokens, completion_tokens,
       {KNOWN_COST}, latency_ms, attempts, calls, created_at, body
FROM outcomes WHERE kind = 'result' AND superseded_by IS NULL
""",  # noqa: S608  # one constant
    f"""
CREATE VIEW dead_letters AS
SELECT job_id, generation, doc_id, reason, attempts, calls, last_error, status_code, line, prompt_tokens,
       completion_tokens, {KNOWN_COST}, latency_ms, created_at, request, body AS response
FROM outcomes WHERE kind = 'dead' AND superseded_by IS NULL
""",  # noqa: S608
)
"""For readers of other tools."""

# As Alembic makes it, so that later migrations go on from here.
VERSION: Final = """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
"""


def create(connection: Connection) -> bool:
    """Make tables and views in the transaction of ``connection``; False when the file is not empty,
    or no longer."""
    if inspect(connection).get_table_names():
        return False
    metadata.create_all(connection, checkfirst=False)
    for statement in (*VIEWS, VERSION):
        connection.execute(text(statement))
    connection.execute(
        text("INSERT INTO alembic_version (version_num) VALUES (:head)"), {"head": HEAD}
    )
    return True

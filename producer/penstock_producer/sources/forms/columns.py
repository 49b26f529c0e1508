"""Sources with columns: whether the job's columns are among them, asked before a row is read."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_producer.errors import SourceError, seen
from penstock_producer.sources.forms.row_forms import RowForm

_SHOWN = 20


def check_columns(uri: str, form: RowForm, names: Sequence[str], *, nested: bool) -> None:
    """Raises SourceError for a column that the job needs and no row can have; also where rows can
    be no batch lines.

    ``nested``: columns may hold objects, so that `{user.name}` may be `name` of the column `user`.
    """
    if form.columns is None:
        raise SourceError(
            "wrong_form",
            f"{uri} has rows of columns, and without a prompt a source holds OpenAI Batch lines; "
            "give a prompt such as "
            f'"Summarise: {{{next(iter(names), "text")}}}" (--prompt)',
        )
    shown = ", ".join(map(seen, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
    for name in form.columns:
        if name not in names and not (nested and name.partition(".")[0] in names):
            raise SourceError(
                "missing_column",
                f"{uri} has no column {seen(name)}; name the id column (--id-field) and the "
                f"prompt's {{columns}} as they are: {shown}",
            )
    for name in form.param_columns:
        if name not in names:
            raise SourceError(
                "missing_column",
                f"{uri} has no column {seen(name)} to take a parameter from; name it "
                f"(--param-field) as it is: {shown}",
            )

"""docs/job-options.md, from the table of options and the spec's own limits.

To write it anew: python tests/harness/options_page.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock_producer import JobSpec
from penstock_producer.job.options import OPTIONS, FlagForm, Option

PAGE = Path(__file__).parents[2] / "docs" / "job-options.md"
HEAD = """# The options of a job

The same options are flags of `penstock run` and `penstock submit`, fields of `JobSpec` in Python, fields of a
[job spec file](job-spec-file.md), and keys of the spec that other doors take as JSON. A flag is read as people write it
(`90m`, `1%`, `name=value`); a field has the type in the third column. A flag that ends in `-file` names a text file that holds
the value; a newline at its end is left out.

An unknown key, a wrong type or a value out of range is refused where the job is submitted, with every
fault in one answer: `SpecError` in Python, status 2 on the command line. Its JSON Schema: `JobSpec.model_json_schema()`.

| flag | field | type and limits | default | meaning |
|---|---|---|---|---|
"""
TAIL = """
This page is written from the table that the code reads (`penstock_producer/job/options.py`), and a test holds the two together.
"""


def page() -> str:
    properties = JobSpec.model_json_schema()["properties"]
    return (
        HEAD + "".join(_row(option, properties[option.field]) for option in OPTIONS.values()) + TAIL
    )


def _row(option: Option, schema: dict[str, Any]) -> str:
    flag = f"--{option.name}" + (f" / --no-{option.name}" if option.form is FlagForm.SWITCH else "")
    flag += f"` `--{option.name}-file" if option.from_file else ""
    default = (
        ""
        if schema.get("default") in (None, {}, False)
        else f"`{option.typed or schema['default']}`"
    )
    cells = (f"`{flag}`", f"`{option.field}`", _type(schema), default, option.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _type(schema: dict[str, Any]) -> str:
    """Of a JSON schema: its type and limits in a few words."""
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"] if one.get("type") != "null")
    limits = [
        words.format(schema[name])
        for name, words in (
            ("exclusiveMinimum", "above {:g}"),
            ("minimum", "from {:g}"),
            ("maximum", "to {:g}"),
            ("maxLength", "of at most {:,} characters"),
        )
        if name in schema
    ]
    pattern = [f"`{schema['pattern']}`"] if "pattern" in schema else []
    return " ".join([schema["type"], *limits, *pattern])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

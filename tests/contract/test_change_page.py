"""docs/change.md: each recipe ends with a test that exists, and what a recipe has in several places
agrees."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from penstock_cli.result_forms import FORMATS
from penstock_gateway import GatewaySettings, create_app
from penstock_producer.job.sinks import TABLE_FORMATS
from penstock_producer.job.spec import OutputFormat

ROOT = Path(__file__).parents[2]
_, *RECIPES = (ROOT / "docs/change.md").read_text("utf-8").split("\n## ")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.splitlines()[0])
def test_a_recipe_says_when_it_is_done(recipe: str) -> None:
    """Each names files in their order, and behind them a test that is there."""
    steps, done, ending = recipe.partition("\nDone when ")
    assert re.search(r"^1\. ", steps, re.MULTILINE)
    assert done
    tests = TEST.findall(ending)
    assert tests
    for file, name in tests:
        found = ast.parse((ROOT / file).read_text("utf-8")).body
        assert name in {one.name for one in found if isinstance(one, ast.FunctionDef)}, file


def test_all_doors_write_the_same_forms() -> None:
    """The option of a job, `penstock results` and the doors over HTTP know the same forms of
    results; over HTTP the rows of a table come as lines, too."""
    document = create_app(GatewaySettings()).openapi()
    asked = document["paths"]["/v1/jobs/{job}/results"]["get"]["parameters"]
    over_http = next(one["schema"]["enum"] for one in asked if one["name"] == "form")
    forms = {"jsonl", *TABLE_FORMATS}
    # HTTP has the table row by row as well: lines of JSON that `penstock.connect` reads
    told = set(over_http) - {"rows"}
    assert (set(get_args(OutputFormat)), set(FORMATS), told) == (forms, forms, forms)

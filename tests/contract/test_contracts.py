"""What the last release promised to other programs is kept: docs/contracts.md, its numbers and its
golden files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from contracts import CONTRACTS, GOLDEN, ITEM, broken, golden

from penstock_producer.errors import UnknownMessageVersion
from penstock_producer.feed.wire import decode_item

PAGE = Path(__file__).parents[2] / "docs/contracts.md"


@pytest.mark.parametrize("name", CONTRACTS)
def test_nothing_that_was_promised_is_gone_or_changed(name: str) -> None:
    """Each line of the last release is true still, unless the contract has a new number; additions
    pass as long as writers need not know them."""
    contract = CONTRACTS[name]
    version, before = golden(name)
    assert len(before) > 10
    assert version == contract.version, "renew the golden files with the number"
    found = broken(before, dict(contract.facts()))
    assert not found, "docs/contracts.md, 'When the test fails':\n" + "\n".join(found)


def test_the_page_has_the_numbers_of_all_contracts() -> None:
    """A number that changes in the code changes on the page, beside the file that it is of."""
    rows = re.findall(
        r"^\| [^|]+ \| (\d+) \| `([\w-]+)\.txt`", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert {name: int(version) for version, name in rows} == {
        name: contract.version for name, contract in CONTRACTS.items()
    }


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("item-message-*.json")), ids=lambda one: one.stem
)
def test_messages_of_the_last_release_are_read(path: Path) -> None:
    """What lies in a queue during an upgrade becomes the same item."""
    message = json.loads(path.read_bytes())
    _, kwargs, _ = json.loads(message["body"])
    item = decode_item(kwargs, message["headers"])
    assert item.key == ITEM
    with pytest.raises(UnknownMessageVersion):
        decode_item({**kwargs, "v": 3}, message["headers"])


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({"a": "str"}, {"a": "str", "a > b": "int"}, []),
        ({"a": "str"}, {}, ["removed: a = str"]),
        ({"a": "str"}, {"a": "int"}, ["changed: a = int, was str"]),
        (
            {"a": "str"},
            {"a": "str", "a > b": "int, required"},
            ["added as required: a > b = int, required"],
        ),
        ({"a": "str"}, {"a": "str", "c": "t", "c > b": "int, required"}, []),
        ({"a": "null or one of x, y"}, {"a": "null or one of x, y, z"}, []),
        ({"a": "one of x, y"}, {"a": "one of x, z"}, ["changed: a = one of x, z, was one of x, y"]),
    ],
)
def test_what_breaks_a_contract(
    before: dict[str, str], now: dict[str, str], found: list[str]
) -> None:
    """Removing, changing, and asking writers for more; not adding, and not one choice more."""
    assert broken(before, now) == found

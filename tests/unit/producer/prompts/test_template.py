from __future__ import annotations

import pytest

from penstock_producer.errors import TemplateError
from penstock_producer.prompts.template import MissingField, Template


def test_renders_columns_and_literal_braces() -> None:
    """`{column}` is replaced and doubled braces are literal ones."""
    assert Template('Say {{"a": 1}} to {name}!').render({"name": "Ada"}) == 'Say {"a": 1} to Ada!'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é\u2028", "é\u2028"),
        (3, "3"),
        (1.5, "1.5"),
        (True, "true"),
        (["a"], '["a"]'),
        ({"k": 1}, '{"k":1}'),
    ],
)
def test_values_render_as_json_except_text(value: object, text: str) -> None:
    """Text goes in as it is, everything else as JSON."""
    assert Template("{v}").render({"v": value}) == text


def test_dots_reach_inside_and_exact_names_win() -> None:
    """`{user.name}` finds a nested value, but a column of exactly that name comes first."""
    assert Template("{user.name}").render({"user": {"name": "in"}}) == "in"
    assert Template("{user.name}").render({"user": {"name": "in"}, "user.name": "exact"}) == "exact"


@pytest.mark.parametrize(
    "record",
    [{}, {"v": None}, {"v": ""}, {"v": " \n"}, {"a": {"b": 1}}, {"a": "text"}, {"a": {"c": ""}}],
)
def test_an_absent_or_empty_column_is_refused(record: dict[str, object]) -> None:
    """A column that is absent, null or empty raises instead of becoming a paid request."""
    with pytest.raises(MissingField):
        Template("{v}{a.c}").render(record)


@pytest.mark.parametrize(
    "text", ["{", "}", "a } b", "{}", "{a!r}", "{a:>9}", "{__import__('os')}", "{a[0]}", "{{a}"]
)
def test_logic_and_lone_braces_are_refused(text: str) -> None:
    """Nothing but column names is accepted between braces, and the error says how to write a
    brace."""
    with pytest.raises(TemplateError, match=r"\{\{ and \}\}"):
        Template(text)


def test_template_injection_stays_text() -> None:
    """Neither a Jinja expression in the template nor braces in a value are evaluated."""
    assert Template("{{ ''.__class__ }}{v}").render({"v": "{v}{{x}}"}) == "{ ''.__class__ }{v}{{x}}"


@pytest.mark.parametrize("record", [{}, {"v": None}, {"v": {"w": 1}, "v.x": None}, {"v.x": ""}])
def test_a_default_stands_for_an_absent_or_empty_column(record: dict[str, object]) -> None:
    """`{column|default:"…"}` renders its text where the record has no value, and the value where it
    has one (D31)."""
    template = Template('{v.x|default:"n/a \\"yet\\""}!')
    assert template.render(record) == 'n/a "yet"!'
    assert template.render({"v": {"x": "y"}}) == "y!"
    assert Template('{v | default: ""}').render({"v": None}) == ""
    assert template.fields == ("v.x",)


@pytest.mark.parametrize(
    "text",
    ["{v|default:none}", "{v|upper}", '{v|default:"a}', '{|default:"a"}', '{v|default:"\\q"}'],
)
def test_nothing_but_a_default_follows_a_column(text: str) -> None:
    """There are no filters, and a default is text in double quotes; the error shows how to write
    one (D31)."""
    with pytest.raises(TemplateError, match=r"\{column\|default:|\{\{ and"):
        Template(text)

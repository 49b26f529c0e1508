"""Prompts in Jinja: what they can do, and that a hostile one does nothing and ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock_producer import JobSpec, SourceError, SpecError, TemplateError
from penstock_producer.accepting.survey import FIRST_ROWS, survey
from penstock_producer.prompts.jinja_filters import CALL_UNITS, FILTERS, MAX_WORK, STEP_UNITS
from penstock_producer.prompts.jinja_prompt import MAX_TEMPLATE_CHARS, JinjaTemplate
from penstock_producer.prompts.template import MissingField, RenderFailed, TextTooLong
from penstock_producer.rows import BadRow, Document
from penstock_producer.sources import open_source

RECORD: dict[str, Any] = {
    "text": "hello",
    "nothing": None,
    "blank": " ",
    "reviews": [{"text": "good", "stars": 5}, {"text": "bad", "stars": 1}],
    "numbers": list(range(10_000)),
    "long": "x" * 2_000_000,
    "unit price": 3,
    "café": "é",
}
MANY = "{% for a in numbers %}{% for b in numbers %}{% endfor %}{% endfor %}"


def rendered(text: str, max_chars: int = 4_000_000) -> str:
    return JinjaTemplate(text).render(RECORD, max_chars)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{{ text }}!\n", "hello!\n"),
        (
            "{% for review in reviews %}\n- {{ review.text }}: {{ review['stars'] }}\n{% endfor %}",
            "- good: 5\n- bad: 1\n",
        ),
        ("{% if reviews|length > 1 %}many{% else %}few{% endif %}", "many"),
        ("{% for r in reviews if r.stars > 3 %}{{ loop.index }}{{ r.text }}{% endfor %}", "1good"),
        (
            "{% for key, value in reviews[0]|items %}{{ key }}={{ value }};{% endfor %}",
            "text=good;stars=5;",
        ),
        ("{% set who = text|title %}{{ who ~ ' ' ~ 1 ~ true }}", "Hello 1true"),
        ("{{ absent|default('-') }}{{ nothing|default('-') }}{{ ''|default('e', true) }}", "--e"),
        ("{% if nothing is none and absent is not defined %}y{% endif %}", "y"),
        ("{{ reviews|map(attribute='text')|join(', ') }}", "good, bad"),
        (
            "{{ reviews|sort(attribute='stars')|tojson }}",
            '[{"text":"bad","stars":1},{"text":"good","stars":5}]',
        ),
        ("{{ text[:2] }}{{ numbers[3] }}{{ 2 + 3 * 4 }}{{ (7 / 2)|round(1) }}", "he3143.5"),
        ("{{ record['unit price'] }}{{ café }}", "3é"),
        ("{{ reviews[1] }}{{ [true, 1.5] }}", '{"text":"bad","stars":1}[true,1.5]'),
        ("{{ text|replace('l', 'L')|truncate(3, true, '') }}", "heL"),
        ("{% raw %}{{ text }}{% endraw %}{# no #}", "{{ text }}"),
    ],
)
def test_a_prompt_has_loops_and_conditions(text: str, wanted: str) -> None:
    """Columns, loops, conditions and filters; values that are not text are shown as JSON, as in
    simple prompts."""
    assert rendered(text) == wanted


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{{ absent }}", "absent"),
        ("{{ nothing }}", "nothing"),
        ("{{ blank }}", "blank"),
        ("{{ reviews[0].price }}", "reviews.0.price"),
        ("{{ absent|upper }}", "absent"),
        ("{% for a in absent %}{% endfor %}", "absent"),
        ("{% if absent == 1 %}{% endif %}", "absent"),
    ],
)
def test_an_absent_or_empty_column_is_refused(text: str, name: str) -> None:
    """It never becomes an empty text in a paid request."""
    with pytest.raises((MissingField, RenderFailed)) as caught:
        rendered(text)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__ }}",
        "{{ text.__class__.__mro__ }}",
        "{{ text['__class__'] }}",
        "{{ record.__init__ }}",
        "{{ text.upper }}",
        "{{ reviews|map(attribute='__class__')|list|tojson }}",
        "{% for a in reviews %}{{ loop._iterable }}{% endfor %}",
        "{% for a in reviews %}{{ loop.__class__ }}{% endfor %}",
        "{{ lipsum }}",
        "{{ cycler }}",
        "{{ namespace }}",
        "{{ reviews|map('attr', '__class__')|list }}",
        "{{ numbers|select('callable')|list }}",
    ],
)
def test_nothing_but_fields_of_the_record_is_reached(text: str) -> None:
    """No attribute, method or global of Python leads out of the record."""
    with pytest.raises((MissingField, RenderFailed)):
        rendered(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ text.upper() }}", "a call is refused; use filters"),
        ("{{ range(10) }}", "a call is refused"),
        ("{{ 10 ** 10 }}", "'pow' is refused"),
        ("{{ 10 // 3 }}", "'floordiv' is refused"),
        ("{{ '%9999999999d' % 1 }}", "'mod' is refused"),
        ("{% macro m() %}{% endmacro %}", "'macro' is refused"),
        ("{% include 'x' %}", "'include' is refused"),
        ("{% extends 'x' %}", "'extends' is refused"),
        ("{% import 'os' as os %}", "'import' is refused"),
        ("{% block a %}{% endblock %}", "'block' is refused"),
        ("{% set a.b = 1 %}", "is refused"),
        ("{% for a in reviews recursive %}{% endfor %}", "a recursive loop is refused"),
        ("{{ self }}", "the name 'self' is refused"),
        ("{{ text|attr('x') }}", "line 1: the filter 'attr' is refused; filters are abs"),
        ("{{ '%d'|format(1) }}", "the filter 'format' is refused"),
        ("{{ text is callable }}", "the test 'callable' is refused; tests are boolean"),
        ("one\n{{ x", "line 2: unexpected end of template"),
        ("{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}", "too deep"),
        ("{{ 1" + " + 1" * 4_000 + " }}", "at most 5000 are allowed"),
        ("{{ a }}" * 5_000, "at most 5000 are allowed"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), f"at most {MAX_TEMPLATE_CHARS}"),
    ],
)
def test_other_parts_of_the_language_are_refused_where_the_job_is_submitted(
    text: str, words: str
) -> None:
    """A list says what a prompt may have; the error names the line, the part and the fix."""
    with pytest.raises(TemplateError) as caught:
        JinjaTemplate(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        MANY,
        MANY.replace("{% endfor %}{% endfor %}", "{{ b }}{% endfor %}{% endfor %}"),
        "{% for a in numbers %}{{ long|upper|length }}{% endfor %}",
        "{% for a in numbers %}{% if long == long[1:] %}{% endif %}{% endfor %}",
        "{% for a in numbers %}{% if 'y' in long %}{% endif %}{% endfor %}",
        "{% for a in numbers %}{% set b = numbers|sort %}{% endfor %}",
        "{% for a in numbers %}{{ numbers|map('string')|list|length }}{% endfor %}",
        "{% for a in numbers %}{% if numbers == numbers|list %}{% endif %}{% endfor %}",
        "{% set a = long ~ long %}{% set b = a ~ a %}{% set c = b ~ b %}",
        "{{ long|replace('x', long) }}",
        "{{ numbers|join(long) }}",
        "{{ long }}{{ long }}{{ long }}",
        "{{ long + long + long }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 5|round(1000000000) }}",
        "{{ [1] + [2] }}",
        "{{ 1 / 0 }}",
        "{{ long|list }}",
        "{% for a in long %}{% endfor %}",
        "{{ 'x'|truncate(5, true, long) }}",
    ],
)
def test_a_template_without_end_or_measure_is_stopped(text: str) -> None:
    """Loops inside loops and texts that grow end within bounds of work and size, as an error of
    that record."""
    with pytest.raises((RenderFailed, TextTooLong)):
        rendered(text)


def test_the_bounds_allow_what_people_write() -> None:
    """A loop over a thousand rows with a few filters costs a small part of what a record may
    cost."""
    assert MAX_WORK > 10 * (1_000 * (STEP_UNITS + 3 * CALL_UNITS))
    assert len(rendered("{% for n in numbers %}{{ n|string|upper }}\n{% endfor %}")) > 40_000


def test_each_record_has_its_own_bounds_and_values() -> None:
    """One template renders many records, and none sees another."""
    template = JinjaTemplate("{% for n in ns %}{{ n }}{% endfor %}{{ t|default('-') }}")
    assert [template.render({"ns": [1], "t": "a"}), template.render({"ns": [2]})] == ["1a", "2-"]
    for _ in range(3):
        with pytest.raises(RenderFailed, match=str(MAX_WORK)):
            JinjaTemplate(MANY).render(RECORD)
    assert template.fields == ("ns", "t")


def test_every_filter_counts_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the listed filters can be called again and again over a long text or list for
    nothing."""
    monkeypatch.setattr("penstock_producer.prompts.jinja_filters.MAX_WORK", 4_000_000)
    for name in sorted(set(FILTERS) - {"default", "d", "round"}):
        for value in ("long", "numbers"):
            with pytest.raises((RenderFailed, TextTooLong)):
                rendered(f"{{% for a in numbers %}}{{% set b = {value}|{name} %}}{{% endfor %}}")


def test_rows_are_rendered_or_refused_by_name(tmp_path: Path) -> None:
    """A job with a Jinja prompt makes requests of its rows; a row that it does not fit is a bad row
    with line and fix."""
    path = tmp_path / "docs.jsonl"
    rows = [{"id": "a", "tags": ["x", "y"]}, {"id": "b"}, {"id": "c", "tags": "text"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = JobSpec(
        model="m", prompt="{% for tag in tags %}{{ tag }};{% endfor %}", template="jinja"
    )
    one, two, three = open_source(path, spec).documents({})
    assert isinstance(one, Document)
    assert json.loads(one.body)["messages"] == [{"role": "user", "content": "x;y;"}]
    assert isinstance(two, BadRow)
    assert (two.line, two.code, two.field) == (2, "missing_field", "tags")
    assert '{{ tags|default("none") }}' in two.fix
    assert isinstance(three, BadRow)
    assert (three.line, three.code) == (3, "template_failed")
    assert "a loop goes over a list or an object, not 'text'" in three.message


def test_a_number_of_csv_is_compared_as_the_text_that_it_is(tmp_path: Path) -> None:
    """A text that is compared with a number is refused in words that say how a number is made of
    it."""
    path = tmp_path / "docs.csv"
    path.write_text("id,stars\na,2\n")
    prompt = "{% if stars < 3 %}bad{% endif %}"
    (row,) = open_source(path, JobSpec(model="m", prompt=prompt, template="jinja")).documents({})
    assert isinstance(row, BadRow)
    assert "a text and a number cannot be compared" in row.message
    assert "{{ column|float }}" in row.message
    (good,) = open_source(
        path, JobSpec(model="m", prompt=prompt.replace("stars", "stars|float"), template="jinja")
    ).documents({})
    assert isinstance(good, Document)
    assert json.loads(good.body)["messages"][0]["content"] == "bad"


def test_a_spec_checks_its_prompt_in_its_own_language() -> None:
    """The same text may be right in one language and wrong in the other; an unknown language is
    refused."""
    assert JobSpec(prompt="{{ a|upper }}", template="jinja").template == "jinja"
    with pytest.raises(SpecError, match=r"/prompt: line 1"):
        JobSpec(prompt="{% endfor %}", template="jinja")
    with pytest.raises(SpecError, match="is not a column name"):
        JobSpec(prompt="{% endfor %}")
    with pytest.raises(SpecError, match="/template"):
        JobSpec(prompt="a", template="mustache")  # type: ignore[arg-type]  # as a service might


@pytest.mark.parametrize(("language", "prompt"), [("fields", "{txet}"), ("jinja", "{{ txet }}")])
def test_a_column_that_no_row_has_is_found_in_the_first_rows(
    language: Any, prompt: str, tmp_path: Path
) -> None:
    """A misspelt column of a large file is said at once, with the column that was meant; the file
    is not read on."""
    path = tmp_path / "docs.jsonl"
    row = '{"id": "%d", "text": "t"}\n'
    path.write_text("".join(row % number for number in range(FIRST_ROWS)) + "not JSON\n")
    spec = JobSpec(model="m", prompt=prompt, template=language)
    with pytest.raises(
        SourceError,
        match=rf"missing_column: none of the first {FIRST_ROWS} rows has the column 'txet'",
    ) as caught:
        survey(open_source(path, spec), spec)
    assert "did you mean 'text'?" in str(caught.value)
    allowed = JobSpec(model="m", prompt=prompt, template=language, max_bad_rows="100%")
    assert len(survey(open_source(path, allowed), allowed).refused) == FIRST_ROWS + 1


def test_jinja_is_imported_for_its_jobs_only() -> None:
    """A service whose jobs have simple prompts does not load it."""
    code = (
        "import sys\n"
        "from penstock_producer import JobSpec\n"
        "from penstock_producer.sources import open_source\n"
        "open_source('x.jsonl', JobSpec(model='m', prompt='{a}'))\n"
        "assert 'jinja2' not in sys.modules\n"
        "JobSpec(prompt='{{ a }}', template='jinja')\n"
        "assert 'jinja2' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""A job spec file: what it may say, and what is said about one that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from job_spec_schema import PLACES, text
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import FromJob, GivenJob, given_job
from penstock_cli.job.jobspec import job_spec
from penstock_cli.main import command_line
from penstock_producer import JobFile, JobSpec, SpecError
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS
from penstock_producer.jobfile import is_job_file
from penstock_producer.jobfile.fields import RunSection, json_schema
from penstock_producer.jobfile.load import MAX_FILE_BYTES
from penstock_producer.jobfile.tree import MAX_DEPTH, MAX_VALUES

WHOLE = """\
source: data/docs.jsonl
job: night
model: m
prompt_file: ask.txt
deadline: 1h30m
max_bad_rows: 2%
params:
  max_tokens: 200
  stop: ["\\n"]
response_schema: answer.json
run:
  out: results
  rpm: 60
"""


def written(folder: Path, content: str | bytes, name: str = "night.yaml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(folder: Path, content: str | bytes, name: str = "night.yaml") -> str:
    """What is said about a file that cannot be used; every line of it names the file."""
    path = written(folder, content, name)
    with pytest.raises(SpecError) as caught:
        JobFile.load(path).spec()
    assert all(problem.place.startswith(str(path)) for problem in caught.value.problems), str(
        caught.value
    )
    return str(caught.value)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    (tmp_path / "ask.txt").write_text("Summarise: {text}\n")
    (tmp_path / "answer.json").write_text('{"type": "object"}')
    return written(tmp_path, WHOLE)


def test_a_file_says_what_flags_can_say(whole: Path) -> None:
    """Options, source, job key and the section of `penstock run`; relative paths count from the
    file."""
    file = JobFile.load(whole)
    assert (file.source, file.job) == (str(whole.parent / "data/docs.jsonl"), "night")
    assert (file.run.out, file.run.rpm, file.run.workers) == (
        str(whole.parent / "results"),
        60.0,
        None,
    )
    assert file.spec() == JobSpec(
        model="m",
        prompt="Summarise: {text}",
        deadline_s=5400.0,
        max_bad_rows="2%",
        response_schema={"type": "object"},
        params={"max_tokens": 200, "stop": ["\n"]},
    )


def test_json_is_read_as_yaml_is(whole: Path) -> None:
    """The same job in JSON, with tabs, an escaped pair of surrogates and `\\/`, which YAML would
    not take."""
    content = (
        "{\n"
        '\t"source": "s3:\\/\\/b\\/docs.jsonl",\n'
        '\t"model": "\\ud83d\\ude00",\n'
        '\t"timeout_s": 1e1\n'
        "}"
    )
    file = JobFile.load(written(whole.parent, content, "night.json"))
    assert (file.source, file.spec()) == ("s3://b/docs.jsonl", JobSpec(model="😀", timeout_s=10.0))


@pytest.mark.parametrize(
    ("content", "line", "field", "words"),
    [
        ("model: m\nmax_token: 5\n", 2, "max_token", "did you mean 'params.max_tokens'?"),
        ("max_atempts: 5\n", 1, "max_atempts", "did you mean 'max_attempts'?"),
        ("max-attempts: 5\n", 1, "max-attempts", "write max_attempts"),
        ("\ntemperature: 0\n", 2, "temperature", "params.temperature"),
        ("rpm: 5\n", 1, "rpm", "it is run.rpm"),
        ("run:\n  model: m\n", 2, "run.model", "it is model at the top of the file"),
        ("run:\n  wokers: 2\n", 2, "run.wokers", "did you mean 'workers'?"),
        ("params:\n  max_token: 5\n", 2, "params.max_token", "did you mean 'max_tokens'?"),
        (
            'max_attempts: "4"\n',
            1,
            "max_attempts",
            "'4' is refused; Input should be a valid integer; write the number without",
        ),
        ("max_attempts: true\n", 1, "max_attempts", "True is refused"),
        ("max_attempts: 2.0\n", 1, "max_attempts", "2.0 is refused"),
        ("max_attempts: 0\n", 1, "max_attempts", "0 is refused"),
        ("max_attempts: 1_0\n", 1, "max_attempts", "'1_0' is refused"),
        ("budget_usd: -1\n", 1, "budget_usd", "-1 is refused"),
        ("budget_usd: true\n", 1, "budget_usd", "True is refused"),
        ("budget_usd: .inf\n", 1, "budget_usd", "'.inf' is refused"),
        (
            "params: {max_tokens: 0}\n",
            1,
            "params.max_tokens",
            "0 is refused; give an integer of at least 1",
        ),
        (
            "prefix_order: no\n",
            1,
            "prefix_order",
            "'no' is refused; Input should be a valid boolean; truth values are true",
        ),
        ("model: 5\n", 1, "model", "5 is refused"),
        ("lane:\n  - api\n", 1, "lane", "lanes are api"),
        ("lane: fast\n", 1, "lane", "lanes are api"),
        ("deadline: 1:30\n", 1, "deadline", "'1:30' is not a duration; write seconds, or units"),
        ("deadline: 8h\ndeadline_s: 5\n", 2, "deadline_s", "deadline is given, too; keep one"),
        ("prompt: a\nprompt_file: b\n", 2, "prompt_file", "prompt is given, too"),
        ("prompt_file: gone.txt\n", 1, "prompt_file", "'gone.txt': it cannot be read"),
        ("response_schema: gone.json\n", 1, "response_schema", "'gone.json': it cannot be read"),
        ("prompt: '{a'\nmodel: m\n", 1, "prompt", "a lone '{'"),
        ("system: hi\n", 1, "system", "a system text needs a prompt"),
        ("run:\n  workers: two\n", 2, "run.workers", "'two' is refused"),
        ("run: results\n", 1, "run", "'results' is refused; give fields"),
        ("source: [a, b]\n", 1, "source", "['a', 'b'] is refused"),
    ],
)
def test_an_unusable_field_is_named_with_its_line(
    content: str, line: int, field: str, words: str, tmp_path: Path
) -> None:
    """File, line, field, the value seen and the fix; unknown names with what was meant (rows 26 and
    27)."""
    told = refusal(tmp_path, content)
    assert f"night.yaml line {line}, field {field}: " in told
    assert words in told, told


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("a: &x [1]\nb: *x\n", 1, "'&x' refers to another part of the file"),
        ("model: *m\n", 1, "'*m' refers to another part of the file"),
        ("base: {}\n<<: {model: m}\n", 2, "'<<' refers to another part"),
        (
            "model: m\nprompt: !!python/object/apply:os.system [id]\n",
            2,
            "the tag 'tag:yaml.org,2002:python/object/apply:os.",
        ),
        ("model: !!binary aGk=\n", 1, "the tag"),
        ("model: m\n---\nmodel: n\n", 2, "a second document begins here"),
        (
            "model: m\nlane: api\nmodel: n\n",
            3,
            "'model' is given here and in line 1; keep one of them",
        ),
        ("params:\n  a: 1\n  a: 2\n", 3, "'a' is given here and in line 2"),
        ("model: m\n\tlane: api\n", 2, "not YAML"),
        ("model: [a\n", 2, "not YAML"),
        ("model: a: b\n", 1, "not YAML: mapping values are not allowed in this context"),
        ("model: \x01\n", 1, "not YAML: it holds a character"),
        ("true: 1\n", 1, "True is not a name; write names as text"),
        ("? [a]\n: 1\n", 1, "is not a name"),
        ("", 1, "the file holds nothing"),
        ("# nothing\n", 1, "the file holds nothing"),
        ("- model\n", 1, "['model'] is not a job spec"),
        ("model\n", 1, "'model' is not a job spec"),
        ("params: {seed: 123456789012345678901}\n", 1, "is too large"),
        ("params: {seed: 1e999}\n", 1, "the number is not finite"),
        ('model: "a\\0b"\n', 1, "the text holds a NUL"),
        (b"model: m\nprompt: caf\xe9\n", 2, "byte 20 is not UTF-8"),
        ("model: m\n".encode("utf-16"), 1, "byte 0 is not UTF-8"),
    ],
)
def test_an_unusable_yaml_file_is_named_with_its_line(
    content: str | bytes, line: int, words: str, tmp_path: Path
) -> None:
    """No tag, alias, second document or repeated name is followed, merged or guessed at (row
    30)."""
    told = refusal(tmp_path, content)
    assert f"night.yaml line {line}" in told
    assert words in told, told


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ('{"model": "m",\n "model": "n"}', 2, "'model' is given here and in line 1"),
        ('{"model": "m",\n: 1}', 2, "not JSON"),
        ('{"params":\n {"seed": NaN}}', 2, "NaN is not a number of JSON"),
        ('{"params":\n {"seed": 1e999}}', 2, "the number is not finite"),
        ('{"params":\n {"seed": ' + "9" * 5000 + "}}", 2, "is too large"),
        ('{"model":\n "\\ud800"}', 2, "half of a surrogate pair"),
        ('{"source": "a"} {"source": "b"}', 1, "not JSON: Extra data"),
        ('{"max_attempts":\n\n true}', 1, "True is refused"),
    ],
)
def test_an_unusable_json_file_is_named_with_its_line(
    content: str, line: int, words: str, tmp_path: Path
) -> None:
    """What Python's reader would let pass or fail on is refused by name (rows 15 to 20 of the
    catalogue)."""
    told = refusal(tmp_path, content, "night.json")
    assert f"night.json line {line}" in told
    assert words in told, told


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("[" * 100_000, "night.yaml", "too deep"),
        ("[" * 100_000, "night.json", "too deep"),
        ("- " * 100_000, "night.yaml", "too deep"),
        ("params: [" + "1," * (MAX_VALUES + 1) + "]", "night.yaml", "too many names and values"),
        ('{"params": [' + "1," * MAX_VALUES + "1]}", "night.json", "too many names and values"),
        ("a" * (MAX_FILE_BYTES + 1), "night.yaml", f"more than {MAX_FILE_BYTES} bytes"),
    ],
)
def test_a_file_has_bounds(content: str, name: str, words: str, tmp_path: Path) -> None:
    """Depth, values and bytes are bounded before anything is built of them (row 30)."""
    assert MAX_DEPTH < 100
    assert words in refusal(tmp_path, content, name)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A folder, a device and a missing file are named; nothing waits for a pipe."""
    for path, words in (
        (tmp_path, "regular file"),
        (Path("/dev/zero"), "regular file"),
        (tmp_path / "x.yaml", "cannot be"),
    ):
        with pytest.raises(SpecError, match=words):
            JobFile.load(path)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("api_key: hunter2-hunter2\n", "api_key"),
        ("run:\n  password: hunter2-hunter2\n", "run.password"),
        ("run:\n  api_key_env: hunter2-hunter2\n", "run.api_key_env"),
        ("model: sk-hunter2hunter2hunter2\n", "model"),
        ("params:\n  user: sk-hunter2hunter2hunter2\n", "params.user"),
        ("params:\n  x.api_key: hunter2-hunter2\n", "params.x.api_key"),
        ("source: postgresql://me:hunter2@db/docs\n", "source"),
        ("run:\n  base_url: https://me:hunter2@host/v1\n", "run.base_url"),
    ],
)
def test_secrets_are_refused_and_never_shown(content: str, field: str, tmp_path: Path) -> None:
    """A key or password in a file is named by its field; the message says where keys belong."""
    told = refusal(tmp_path, f"max_attempts: 0\n{content}")
    assert f"field {field}: " in told
    assert "hunter2" not in told


def test_a_prompt_may_speak_of_keys(tmp_path: Path) -> None:
    """Texts for the model are content, not settings."""
    content = "model: m\nprompt: 'Authorization: Bearer abcdef123456 in {text}'\n"
    assert "Bearer abcdef123456" in (JobFile.load(written(tmp_path, content)).spec().prompt or "")


@pytest.mark.parametrize(
    ("name", "content", "is_spec"),
    [
        ("a.yaml", "", True),
        ("a.YML", "", True),
        ("a.jsonl", '{"source": "x"}', False),
        ("a.json", '{"source": "x"}', True),
        ("a.json", '{\n  "source": "x",\n', True),
        ("a.json", '{"id": "1", "text": "t"}', False),
        ("a.json", '{"id": "1", "source": "t"}\n{"id": "2", "source": "u"}', False),
        ("a.json", '{"custom_id": "1", "source": "x"}', False),
    ],
)
def test_a_spec_is_told_from_documents(
    name: str, content: str, is_spec: bool, tmp_path: Path
) -> None:
    """YAML is a job spec; JSON is one where it is one object with a source, and else documents as
    before."""
    assert is_job_file(str(written(tmp_path, content, name))) is is_spec
    assert not is_job_file("s3://bucket/a.yaml")


def given(file: Path, typed: dict[str, Any], files: dict[str, Path] | None = None) -> GivenJob:
    shown = {field: option.typed or option.default for field, option in OPTIONS.items()}
    return given_job(str(file), None, shown | typed, frozenset(typed), files or {})


def test_flags_go_before_the_file(whole: Path, tmp_path: Path) -> None:
    """What is typed wins, parameters one by one; what is not typed stays as the file has it."""
    job = given(whole, {"model": "n", "params": ["max_tokens=5"], "timeout_s": "3s"})
    spec = job_spec(job)
    assert (spec.model, spec.timeout_s, spec.deadline_s) == ("n", 3.0, 5400.0)
    assert spec.params == {"max_tokens": 5, "stop": ["\n"]}
    assert (job.key(None), job.key("day"), job.of_run("rpm", None), job.of_run("rpm", 5.0)) == (
        "night",
        "day",
        60.0,
        5.0,
    )
    other = written(tmp_path, "Translate {text}", "other.txt")
    assert job_spec(given(whole, {}, {"prompt": other})).prompt == "Translate {text}"


def test_a_fault_is_said_where_it_was_written(whole: Path) -> None:
    """A wrong flag over a good file is the flag's fault; a wrong field beside good flags is the
    file's."""
    whole.write_text(WHOLE.replace("max_bad_rows: 2%", "max_bad_rows: some"))
    typed = CliRunner().invoke(command_line(), ["submit", str(whole), "--max-attempts", "0"])
    lines = str(typed.exception).splitlines()
    assert [line for line in lines if line.strip().startswith("--max-attempts: 0 is refused")]
    assert [
        line for line in lines if f"{whole} line 6, field max_bad_rows: 'some' is refused" in line
    ]


def test_a_dry_run_of_a_file(whole: Path) -> None:
    """`penstock run night.yaml --dry-run` needs no flag: source, prompt, model and folder are the
    file's."""
    (whole.parent / "data").mkdir()
    (whole.parent / "data/docs.jsonl").write_text('{"id": "a", "text": "one"}\n')
    done = CliRunner().invoke(
        command_line(), ["run", str(whole), "--dry-run", "--base-url", "http://localhost:9"]
    )
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "Summarise: one" in done.output


def test_every_flag_has_a_field_in_the_file() -> None:
    """What `penstock run` takes, the file takes; only `--dry-run` and help are about one look at a
    job."""
    import typer.main

    command = typer.main.get_command(command_line()).commands["run"]  # type: ignore[attr-defined]  # it is a group
    looks = {"dry_run", "spec_file", "help", "help_all"}
    flags = {parameter.name for parameter in command.params} - looks
    schema = json_schema()["properties"]
    assert flags == (
        set(schema) - {"run", "$schema", "batch_poll", "cache", "deadline", "timeout"}
    ) | set(schema["run"]["properties"])
    assert set(RunSection.model_fields) == set(RUN_OPTIONS)


def test_the_schema_is_published_as_it_is(whole: Path) -> None:
    """Package and docs carry the schema of this release; `python tests/harness/job_spec_schema.py` writes
    it anew."""
    for place in PLACES:
        assert place.read_text("utf-8") == text(), place
    Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize(
    ("fields", "usable"),
    [
        (
            {
                "source": "d",
                "model": "m",
                "deadline": "8h",
                "params": {"max_tokens": 5},
                "run": {"out": "o", "rpm": 6},
            },
            True,
        ),
        (
            {
                "response_schema": "answer.json",
                "prompt_file": "p.txt",
                "prefix_order": True,
                "max_bad_rows": 5,
            },
            True,
        ),
        ({"max_token": 5}, False),
        ({"max_attempts": 0}, False),
        ({"run": {"workers": "2"}}, False),
    ],
)
def test_the_schema_accepts_and_refuses_what_the_reader_does(
    fields: dict[str, Any], usable: bool, whole: Path
) -> None:
    """An editor that checks with the schema agrees with the command."""
    (whole.parent / "p.txt").write_text("{text}")
    file = written(whole.parent, json.dumps(fields), "given.json")
    assert Draft202012Validator(json_schema()).is_valid(fields) is usable
    if usable:
        JobFile.load(file).spec()
    else:
        with pytest.raises(SpecError):
            JobFile.load(file).spec()


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """Unknown names, values, parameters, templates and the section run: one below the other, in the
    order of the file."""
    told = refusal(
        tmp_path,
        "modle: m\nprompt: '{text'\nmax_attempts: 0\nparams: {max_tokens: lots}\nlane: fast\n"
        "response_schema: {type: objekt}\ndeadline: soon\nrun: {workers: two}\n",
    )
    first, *lines = told.split("\n")
    assert first == f"job spec: {len(lines)} mistakes:"
    place = f"  {tmp_path / 'night.yaml'} line "
    assert [line.removeprefix(place).partition(":")[0] for line in lines] == [
        "1, field modle",
        "2, field prompt",
        "3, field max_attempts",
        "4, field params.max_tokens",
        "5, field lane",
        "6, field response_schema.type",
        "7, field deadline",
        "8, field run.workers",
    ]


def test_a_misspelt_prompt_makes_no_further_mistakes(tmp_path: Path) -> None:
    """What follows from one mistake is not listed beside it."""
    told = refusal(tmp_path, "model: m\npromt: '{text}'\nsystem: hi\n")
    assert "did you mean 'prompt'?" in told
    assert "system" not in told


def test_options_that_do_not_fit_together_are_told_together(tmp_path: Path) -> None:
    """Each of them, where every field is right by itself."""
    told = refusal(tmp_path, "system: hi\nfallback_on: [timeout]\nescape_formulas: true\n")
    assert [
        word in told
        for word in ("3 mistakes", "needs a prompt", "it needs models", "escape_formulas")
    ] == [True] * 4


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("from_job: first\nsource: d.jsonl\n", "source is given, too"),
        ("where: status=dead\nsource: d.jsonl\n", "there is no from_job that it is about"),
        ("from_job: first\nwhere: {status: dead}\n", "give a text or a list of texts"),
        ("from_job: 7\n", "7 is refused"),
    ],
)
def test_outcomes_of_another_job_are_named_in_the_place_of_a_source(
    tmp_path: Path, written: str, says: str
) -> None:
    """By a key and one condition or several; what contradicts that is said with its line."""
    path = tmp_path / "again.yaml"
    path.write_text("from_job: first\nwhere: [status=dead, reason!=http_400]\nmodel: m\n")
    file = JobFile.load(path)
    assert (file.source, file.from_job, file.where) == (
        None,
        "first",
        ("status=dead", "reason!=http_400"),
    )
    path.write_text(written)
    with pytest.raises(SpecError, match=r"again\.yaml line \d") as refused:
        JobFile.load(path)
    assert says in str(refused.value)


def test_a_flag_goes_before_the_job_whose_outcomes_a_file_names(tmp_path: Path) -> None:
    """Another job, or a source; what the file says counts where nothing is typed."""
    path = tmp_path / "again.yaml"
    path.write_text("from_job: first\nwhere: status=dead\n")
    given = given_job(None, path, {}, frozenset(), {})
    assert given.outcomes(None, None) == FromJob("first", ("status=dead",))
    assert given.outcomes("second", ["score<1"]) == FromJob("second", ["score<1"])
    assert given_job("d.jsonl", path, {}, frozenset(), {}).outcomes(None, None) is None
    for source, job, where in (
        (None, None, None),
        ("d.jsonl", "first", None),
        ("d.jsonl", None, ["a=1"]),
    ):
        with pytest.raises(UsageProblem, match="SOURCE"):
            given_job(source, None, {}, frozenset(), {}).outcomes(job, where)

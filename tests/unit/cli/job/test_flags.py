"""What flags become, and what is said about those that are unusable."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import GivenJob, parse_pairs
from penstock_cli.job.jobspec import (
    default_job_key,
    job_spec,
    parse_duration,
    with_own_model,
    with_provider,
)
from penstock_cli.job.options import ProviderFlags
from penstock_cli.main import command_line
from penstock_producer.job.lanes import lanes_in_words
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import ProviderSettings, WorkerSettings


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1h30m", 5400), ("2 d", 172_800), ("0.5min", 30), ("250ms", 0.25)],
)
def test_durations_take_plain_seconds_and_units(text: str, seconds: float) -> None:
    """A duration reads as people write it."""
    assert parse_duration("--deadline", text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1h30", "-5m", "0", "1y", "nan", "h"])
def test_an_unusable_duration_names_its_flag_and_value(text: str) -> None:
    """The message repeats what was typed and where."""
    with pytest.raises(UsageProblem, match=r"--deadline ") as caught:
        parse_duration("--deadline", text)
    assert repr(text) in str(caught.value)


def test_params_are_json_where_they_can_be() -> None:
    """Numbers, lists and truth values keep their types; everything else is text."""
    typed = parse_pairs(
        "--param", ["max_tokens=200", "temperature=0.5", "stop=[1]", "user=anna", "seed=", "x=a=b"]
    )
    assert typed == {
        "max_tokens": 200,
        "temperature": 0.5,
        "stop": [1],
        "user": "anna",
        "seed": "",
        "x": "a=b",
    }
    assert type(typed["max_tokens"]) is int


@pytest.mark.parametrize("pairs", [["max_tokens"], ["=5"], ["a=1", "a=2"]])
def test_broken_pairs_are_refused(pairs: list[str]) -> None:
    """No pair is guessed at and none silently wins."""
    with pytest.raises(UsageProblem, match=r"--param"):
        parse_pairs("--param", pairs)


def flags(**given: Any) -> GivenJob:
    return GivenJob("docs.jsonl", given)


def test_flags_become_a_spec() -> None:
    """Every job flag arrives in the spec in its own unit."""
    spec = job_spec(
        flags(
            model="m",
            prompt="Say {text}",
            params=["max_tokens=5"],
            deadline_s="2h",
            max_bad_rows="3",
            budget_usd=1.5,
        )
    )
    assert (spec.model, spec.prompt, spec.params) == ("m", "Say {text}", {"max_tokens": 5})
    assert (spec.deadline_s, spec.timeout_s, spec.max_bad_rows, spec.budget_usd) == (
        7200.0,
        120.0,
        3,
        1.5,
    )


def test_flags_name_hooks_and_say_what_becomes_of_long_prompts_and_their_order() -> None:
    """Left out, the spec decides: no hooks, too long is a failure, the order is the lane's."""
    spec = job_spec(
        flags(
            preprocess="my.hooks:before",
            postprocess="hooks:after",
            on_overflow="trim",
            prefix_order=False,
        )
    )
    assert (spec.preprocess, spec.postprocess, spec.on_overflow) == (
        "my.hooks:before",
        "hooks:after",
        "trim",
    )
    assert (
        spec.prefix_order,
        job_spec(flags()).prefix_order,
        job_spec(flags(prefix_order=True)).prefix_order,
    ) == (
        False,
        None,
        True,
    )


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"preprocess": "hooks.py"}, "--preprocess"),
        ({"postprocess": "my-hooks:f"}, "--postprocess"),
        ({"on_overflow": "cut"}, "--on-overflow"),
    ],
)
def test_unusable_hooks_and_overflows_are_refused_by_their_flags(
    given: dict[str, str], flag: str
) -> None:
    """The message names the flag and what was typed."""
    with pytest.raises(UsageProblem, match=rf"^{flag}: ") as caught:
        job_spec(flags(**given))
    assert next(iter(given.values())) in str(caught.value)


@pytest.mark.parametrize("command", ["run", "submit"])
@pytest.mark.parametrize(
    ("typed", "order"), [([], None), (["--prefix-order"], True), (["--no-prefix-order"], False)]
)
def test_the_commands_pass_these_flags_on(
    command: str, typed: list[str], order: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is typed reaches the spec, and what is not typed is None."""
    seen: list[GivenJob] = []

    def stop(given: Any, *_: Any) -> None:
        seen.append(given if isinstance(given, GivenJob) else given.given)
        raise UsageProblem("far enough")

    monkeypatch.setattr("penstock_cli.run.local.run_local", stop)
    monkeypatch.setattr("penstock_cli.job.jobspec.job_spec", stop)
    monkeypatch.setattr(
        "penstock_cli.processes.standby.Standby", lambda *_, **__: contextlib.nullcontext()
    )
    more = ["--preprocess", "a:b", "--postprocess", "c:d", "--on-overflow", "shrink", *typed]
    CliRunner().invoke(
        command_line(), [command, "x.jsonl", *(["--out", "o"] if command == "run" else []), *more]
    )
    assert [
        tuple(
            one.flags[name] for name in ("preprocess", "postprocess", "on_overflow", "prefix_order")
        )
        for one in seen
    ] == [("a:b", "c:d", "shrink", order)]


def test_flags_say_whose_job_it_is_and_how_urgent() -> None:
    """`--priority`, `--weight` and `--tenant` become fields of the job's spec."""
    spec = job_spec(flags(priority="low", weight=3, tenant="search"))
    assert (spec.priority, spec.weight, spec.tenant) == ("low", 3.0, "search")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"priority": "high"}, r"--priority: 'high'"),
        ({"weight": 0.0}, r"--weight: 0.0"),
        ({"tenant": "a b"}, r"--tenant: 'a b'"),
        (
            {"lane": "fast"},
            rf"--lane: 'fast' is refused; lanes are {lanes_in_words()}; auto chooses$",
        ),
        ({"max_attempts": 0}, r"--max-attempts: 0"),
        ({"params": ["max_tokens=lots"]}, r"--param max_tokens: 'lots'"),
        ({"max_bad_rows": "some"}, r"--max-bad-rows: 'some'"),
        ({"prompt": "Say {text}"}, r"--model"),
        ({"endpoint": "v1/x"}, r"--endpoint: 'v1/x'"),
        ({"budget_usd": -1.0}, r"--budget-usd: -1.0"),
        ({"fallback": ["a"] * 5}, r"--fallback: .*at most 4"),
        (
            {"fallback": ["a"], "fallback_on": ["bad luck"]},
            r"--fallback-on 0: 'bad luck' .*'content_filter'",
        ),
        ({"fallback_on": ["timeout"]}, r"--fallback-on: it needs models"),
        ({"schema_repairs": 11}, r"--schema-repairs: 11"),
    ],
)
def test_an_unusable_flag_is_named_as_it_was_typed(given: dict[str, Any], told: str) -> None:
    """Messages name flags and values, not the fields of classes."""
    with pytest.raises(UsageProblem, match=told):
        job_spec(flags(**given))


def test_several_unusable_flags_are_listed_below_one_another() -> None:
    """Each in the words of its flag."""
    with pytest.raises(UsageProblem) as caught:
        job_spec(flags(max_attempts=0, prompt="{a", lane="fast"))
    first, *lines = str(caught.value).split("\n")
    assert first == "3 mistakes:"
    assert sorted(line.split(":")[0] for line in lines) == [
        "  --lane",
        "  --max-attempts",
        "  --prompt",
    ]


def settings(**providers: ProviderSettings) -> WorkerSettings:
    return WorkerSettings(providers=providers)


def test_provider_flags_win_over_the_file() -> None:
    """What is typed overrides what is configured; the rest stays."""
    configured = settings(default=ProviderSettings(base_url="http://old", rpm=60, tpm=1000))
    provider = with_provider(
        configured, "default", ProviderFlags(base_url="http://new/", rpm=5)
    ).providers["default"]
    assert (provider.base_url, provider.rpm, provider.tpm) == ("http://new", 5, 1000)


def test_only_the_provider_of_the_job_is_kept() -> None:
    """A worker of `run` is not stopped by the missing key of a provider that the job does not
    use."""
    configured = settings(
        default=ProviderSettings(base_url="http://a"),
        other=ProviderSettings(api_key_env="UNSET_KEY"),
    )
    assert list(with_provider(configured, "default", ProviderFlags()).providers) == ["default"]


def test_a_provider_that_a_fallback_names_is_kept_with_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`penstock run --fallback dear/large` takes that provider along; a model with a slash in its
    name is no provider."""
    dear = ProviderSettings(base_url="http://b", api_key_env="DEAR_KEY")
    configured = settings(default=ProviderSettings(base_url="http://a"), dear=dear, third=dear)
    fallback = ["dear/large", "meta/llama"]
    monkeypatch.setenv("DEAR_KEY", "k")
    assert list(with_provider(configured, "default", ProviderFlags(), fallback).providers) == [
        "default",
        "dear",
    ]
    monkeypatch.delenv("DEAR_KEY")
    with pytest.raises(UsageProblem, match="DEAR_KEY, which is not set"):
        with_provider(configured, "default", ProviderFlags(), fallback)


def test_models_to_fall_back_on_are_typed_one_by_one() -> None:
    """In their order; left out, there are none, also where an empty list comes from the command
    line."""
    spec = job_spec(
        flags(fallback=["b", "c/d"], fallback_on=["context_overflow"], schema_repairs=0)
    )
    assert (spec.fallback, spec.fallback_on, spec.schema_repairs) == (
        ["b", "c/d"],
        ["context_overflow"],
        0,
    )
    plain = job_spec(flags(fallback=[], fallback_on=[]))
    assert (plain.fallback, plain.fallback_on, plain.schema_repairs) == (None, None, 2)


def test_a_schema_is_a_file_or_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--response-schema` takes a path, or the import path of a Pydantic model in the working
    folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models_of_flags.py").write_text(
        "from pydantic import BaseModel\nclass A(BaseModel):\n    x: int\n"
    )
    (tmp_path / "answer.json").write_text('{"type":"object"}')
    assert job_spec(flags(response_schema=Path("answer.json"))).response_schema == {
        "type": "object"
    }
    model = job_spec(flags(response_schema=Path("models_of_flags:A"))).response_schema
    assert (model or {})["properties"]["x"]["type"] == "integer"
    with pytest.raises(
        UsageProblem, match="--response-schema models_of_flags:B: B is not in models_of_flags"
    ):
        job_spec(flags(response_schema=Path("models_of_flags:B")))


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("default", ProviderFlags(base_url="ftp://x"), r"--base-url 'ftp://x'.*http"),
        ("default", ProviderFlags(base_url="http://x", rpm=0), r"--rpm 0"),
        ("default", ProviderFlags(base_url="http://x", tpm=9, itpm=9), r"not both"),
        (
            "default",
            ProviderFlags(base_url="http://x", profile="opeani"),
            r"--profile 'opeani'.*'openai'",
        ),
        (
            "default",
            ProviderFlags(base_url="http://x", api_key_env="UNSET_KEY"),
            r"UNSET_KEY, which is not set",
        ),
        ("default", ProviderFlags(), r"OPENAI_API_KEY"),
        (
            "azure",
            ProviderFlags(),
            r"--provider azure is not in penstock.toml \(configured: default\)",
        ),
    ],
)
def test_an_unusable_provider_is_explained(
    name: str, given: ProviderFlags, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong URL, limit, key or name is refused before anything starts."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("UNSET_KEY", raising=False)
    with pytest.raises(UsageProblem, match=told):
        with_provider(settings(default=ProviderSettings()), name, given)


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("data/reviews.jsonl", "reviews"),
        ("s3://bucket/in/night 1.jsonl?versionId=3", "night-1"),
        ("../../etc/.hidden", "hidden"),
        ("日本.jsonl", "job"),
        ("tickets/*.csv.gz", "tickets"),
        ("s3://bucket/tickets/", "tickets"),
        ("x" * 300 + ".jsonl", "x" * 64),
    ],
)
def test_the_job_key_comes_from_the_file_name(source: str, key: str) -> None:
    """The same file gives the same job, in characters that every store takes."""
    assert default_job_key(source) == key


def test_a_lane_with_its_own_model_needs_no_name_for_it() -> None:
    """A prompt without --model is enough, and embed asks for embeddings unless a flag says
    otherwise."""
    assert job_spec(flags(lane="embed", prompt="{text}")).endpoint == "/v1/embeddings"
    assert job_spec(flags(lane="gpu", prompt="{text}")).endpoint == "/v1/chat/completions"
    assert job_spec(flags(lane="embed", endpoint="/v1/x")).endpoint == "/v1/x"


def test_the_model_flag_of_embed_is_the_model_that_is_loaded(tmp_path: Path) -> None:
    """A folder is made absolute, because workers have their own; a configured model makes the flag
    a label."""
    (tmp_path / "config.json").write_text("{}")
    given, configured = (
        WorkerSettings(lane="embed"),
        WorkerSettings(lane="embed", embed=EmbedSettings(model="known")),
    )
    assert with_own_model(
        given, job_spec(flags(lane="embed", model=str(tmp_path)))
    ).embed.model == str(tmp_path)
    assert (
        with_own_model(configured, job_spec(flags(lane="embed", model="label"))).embed.model
        == "known"
    )
    assert (
        with_own_model(given, job_spec(flags(lane="embed", model="nowhere"))).embed.model
        == "nowhere"
    )
    assert with_own_model(given, job_spec(flags(model=str(tmp_path)))).embed.model is None


def test_the_model_flag_of_gpu_is_hosted_under_the_name_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative folder is found by workers, and requests may go on calling it as the flag did."""
    (tmp_path / "llama").mkdir()
    monkeypatch.chdir(tmp_path)
    given = WorkerSettings(lane="gpu")
    configured = WorkerSettings(
        lane="gpu", gpu=GpuSettings(model="/models/llama", lora={"legal": "/adapters/legal"})
    )
    hosted = with_own_model(given, job_spec(flags(lane="gpu", model="llama"))).gpu
    assert (hosted.model, hosted.names) == (str(tmp_path / "llama"), ("llama",))
    assert (
        with_own_model(configured, job_spec(flags(lane="gpu", model="legal"))).gpu == configured.gpu
    )
    assert (
        with_own_model(given, job_spec(flags(lane="gpu", model="org/name"))).gpu.model == "org/name"
    )

"""What the body of a call that waits may have besides OpenAI's fields."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_gateway.direct import fields, routes
from penstock_gateway.direct.fields import checked_body
from penstock_gateway.refused import Refused
from penstock_gateway.settings import DirectFields
from penstock_producer.dialects import COMPLETIONS
from penstock_producer.job.endpoints import CHAT, MESSAGES, RESPONSES
from penstock_workers.lanes.gpu.requests.sampling import KNOWN

SAY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Say something."}]}
OF_ENGINES: dict[str, Any] = {
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "ignore_eos": True,
    "min_tokens": 2,
    "stop_token_ids": [2],
    "bad_words": ["x"],
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "allowed_token_ids": [5],
    "structured_outputs": {
        "json": {"type": "object", "properties": {"any_name": {"type": "string"}}}
    },
}
OF_TEMPLATES: dict[str, Any] = {
    "chat_template_kwargs": {"enable_thinking": False},
    "add_generation_prompt": True,
    "continue_final_message": False,
}


def test_fields_of_engines_are_passed_on_as_they_are() -> None:
    """All of them are fields that the gpu lane knows."""
    body = {**SAY, **OF_ENGINES, **OF_TEMPLATES}
    assert checked_body(body, CHAT, DirectFields()) == body
    assert OF_ENGINES.keys() | OF_TEMPLATES.keys() <= KNOWN
    written = {"model": "m", "prompt": "Once", **OF_ENGINES}
    assert checked_body(written, COMPLETIONS, DirectFields()) == written


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", "many"),
        ("min_p", 2),
        ("min_tokens", -1),
        ("ignore_eos", 1),
        ("stop_token_ids", 7),
        ("structured_outputs", "x"),
    ],
)
def test_their_values_are_checked(name: str, value: object) -> None:
    """A wrong one is refused by its name before it is queued."""
    with pytest.raises(Refused) as refused:
        checked_body({**SAY, name: value}, CHAT, DirectFields())
    assert refused.value.param == name


def test_the_refusal_of_an_unknown_field_names_what_the_operator_may_do() -> None:
    """A field of a provider's own is taken once the settings name it."""
    with pytest.raises(Refused, match=r"gateway\.direct\.extra_fields"):
        checked_body({**SAY, "safe_prompt": True}, CHAT, DirectFields())
    assert checked_body(
        {**SAY, "safe_prompt": True}, CHAT, DirectFields(extra_fields=("safe_prompt",))
    )["safe_prompt"]


def test_what_prompts_share_is_checked_once_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte that goes with each of 256 prompts is 256 MB; and each prompt's own messages are
    checked all the same."""
    checked = list[object]()
    real = fields.checked_body

    def counted(*given: Any) -> dict[str, Any]:
        checked.append(given)
        return real(*given)

    monkeypatch.setattr(routes, "checked_body", counted)
    shared = {
        "model": "m",
        "temperature": 0.5,
        "prompts": ["a", [{"role": "user", "content": "b"}], "c"],
    }
    bodies = routes.bodies_of(shared, DirectFields())
    assert [body["messages"][-1]["content"] for body in bodies] == ["a", "b", "c"]
    assert all(body["temperature"] == 0.5 for body in bodies)
    assert len(checked) == 1
    with pytest.raises(Refused, match=r"prompts\[1\]"):
        routes.bodies_of(
            {**shared, "prompts": ["a", [{"role": "user", "content": "b", "url2": 1}]]},
            DirectFields(),
        )
    with pytest.raises(Refused) as caught:
        routes.bodies_of(
            {**shared, "system": "x" * 1_000_000, "prompts": ["a"] * 200}, DirectFields()
        )
    assert caught.value.status == 413


def test_a_name_far_inside_is_told_with_its_place() -> None:
    """Other places are not written out: a body may have hundreds of thousands of places."""
    inner: dict[str, object] = {"text": [{"url": [{"a" * 100_000: 1}]}]}
    given = {"model": "m", "messages": [{"role": "user", "content": "x", "tools": [inner]}]}
    with pytest.raises(Refused) as caught:
        fields.checked_body(given, CHAT, DirectFields())
    assert str(caught.value.param).startswith("messages[0].tools[0].text[0].url[0].aaa")
    assert len(str(caught.value.param)) == fields.SHOWN_CHARS


ASKED: dict[str, dict[str, Any]] = {
    MESSAGES: {**SAY, "max_tokens": 5},
    RESPONSES: {"model": "m", "input": "Say something."},
}


@pytest.mark.parametrize(
    ("endpoint", "given"),
    [
        (MESSAGES, {"system": [{"type": "text", "text": "S", "cache_control": {"type": "x"}}]}),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": {"properties": {"url2": {}}}}]}),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {}}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {"any": {}}}}}),
        (RESPONSES, {"store": False, "include": ["reasoning.encrypted_content"]}),
    ],
)
def test_requests_of_other_apis_are_passed_on(endpoint: str, given: dict[str, Any]) -> None:
    """Their own fields, and the names in schemas that are the caller's."""
    body = ASKED[endpoint] | given
    assert checked_body(body, endpoint, DirectFields()) == body


@pytest.mark.parametrize(
    ("endpoint", "given", "param"),
    [
        (MESSAGES, {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        (MESSAGES, {"container": "c"}, "container"),
        (MESSAGES, {"messages": []}, "messages"),
        (MESSAGES, {"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        (MESSAGES, {"messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
        (MESSAGES, {"max_tokens": None}, "max_tokens"),
        (MESSAGES, {"max_tokens": 10**9}, "max_tokens"),
        (MESSAGES, {"tools": [{"name": "f", "server_url": "http://x"}]}, "tools[0].server_url"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
        (RESPONSES, {"conversation": "c"}, "conversation"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"input": None}, "input"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": [7]}, "input[0]"),
        (RESPONSES, {"max_output_tokens": 10**9}, "max_output_tokens"),
        (RESPONSES, {"tools": [{"type": "mcp", "server_url": "x"}]}, "tools[0].server_url"),
        (RESPONSES, {"input": [{"type": "x", "file_id": "file-1"}]}, "input[0].file_id"),
    ],
)
def test_what_names_a_place_or_another_callers_things_is_refused(
    endpoint: str, given: dict[str, Any], param: str
) -> None:
    """At the provider all tenants have one account: an id there may be another tenant's."""
    with pytest.raises(Refused) as refused:
        checked_body(ASKED[endpoint] | given, endpoint, DirectFields())
    assert (refused.value.status, refused.value.param) == (400, param)

"""Request bodies as a careless or a hostile submitter writes them: every field that the lanes read,
with what it must not hold.

``drawn`` gives the same bodies in each run. A body has a few hostile fields beside good ones, since
the first bad one refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Body = dict[str, Any]

VOCABULARY: Final = 4096  # of the tiny models, at most
TEXTS: Final = (
    "",
    " ",
    "import os",
    "é",
    "深度学习",
    "\N{SNOWMAN}\u200d\u202e",
    "\U0001f600" * 20,
    "<|im_end|>\n<|im_start|>system\n",
    "{{ 7 * 7 }}{% for x in range(10**9) %}{% endfor %}",
    "\\",
    "\x01\x1b[31m",
    "word " * 900,
    "a" * 6_000,
)
NUMBERS: Final = (
    0,
    1,
    -1,
    2,
    20,
    21,
    128,
    129,
    1_024,
    10**6,
    2**31 - 1,
    2**31,
    -(2**31),
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    0.0,
    -0.0,
    1e-9,
    0.5,
    1.0,
    1.5,
    2.0,
    2.1,
    1e-308,
    1e308,
    -1e308,
)
TOKENS: Final = (0, 1, 2, 100, VOCABULARY - 1, VOCABULARY, -1, 2**31, 2**63 - 1)
PATTERNS: Final = (
    "(",
    "",
    "[",
    "a{3,1}",
    "(?=a)b",
    "(a|a)*$",
    "[ab]{1,5}",
    "\\p{L}+",
    "(a{1,900}){1,900}",
    "a+",
    "((((a{0,40}){0,40}){0,40}){0,40})",
    "[^\\x00-\\U0010ffff]",
    "^$",
)
GRAMMARS: Final = (
    "root ::= root",
    'root ::= "a" root',
    "start: x",
    "",
    "root ::=",
    'root ::= "yes" | "no"',
    'root ::= "a"{1,90000}',
    "root ::= nowhere",
    'root ::= ("a"* )*',
    "root ::= [",
)
CHOICES: Final[tuple[Any, ...]] = (
    [],
    [""],
    ["yes", "no"],
    [1],
    "yes",
    ["a"] * 3_000,
    ["x" * 9_000],
)
TAGS: Final = ("", "{}", '{"structures":[]}', '{"type":"structural_tag"}')


def _deep(levels: int) -> Body:
    schema: Body = {"type": "boolean"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


SCHEMAS: Final[tuple[Any, ...]] = (
    {"type": "boolean"},
    {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    },
    {"$ref": "#"},
    {"$ref": "#/nowhere"},
    {"$ref": "http://169.254.169.254/latest"},
    {"$ref": "file:///etc/passwd"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"anyOf": []},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"not": {}},
    {"enum": []},
    {"enum": [None, 1e308, "x", {}]},
    {"const": {"a": [1, {"b": None}]}},
    {"type": "no"},
    {"type": ["string", "null", 5]},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "minLength": -1},
    {"type": "string", "pattern": "(a{1,900}){1,900}"},
    {"type": "string", "pattern": "("},
    {"type": "string", "format": "no-such-format"},
    {"type": "array", "minItems": 10**8},
    {"type": "array", "items": {"type": "array", "items": {"$ref": "#"}}, "minItems": 1},
    {"type": "integer", "minimum": 10, "maximum": 1},
    {"type": "integer", "minimum": 1e300},
    {"type": "number", "multipleOf": 0},
    {"type": "object", "patternProperties": {"(": {}}},
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(500)}},
    {"type": "object", "required": ["a"] * 1_000},
    _deep(18),
    {},
    True,
    False,
    None,
    [],
    "{}",
)

LEAVES: Final = (
    st.none()
    | st.booleans()
    | st.sampled_from(NUMBERS)
    | st.sampled_from(TEXTS)
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
)
NAMES: Final = st.text("ab$", max_size=2)
ANY: Final = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def numbers(*more: object) -> st.SearchStrategy[Any]:
    return st.one_of(st.sampled_from(more), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), ANY)


def tokens() -> st.SearchStrategy[Any]:
    lists = st.lists(st.sampled_from(TOKENS), max_size=5) | st.sampled_from(
        [list(range(1, 4_000)), [7] * 3_000]
    )
    return st.one_of(
        st.lists(st.integers(0, 999), min_size=1, max_size=9), lists, st.lists(ANY, max_size=2), ANY
    )


def constraint() -> st.SearchStrategy[Any]:
    of_kind = st.one_of(
        st.builds(lambda it: {"json": it}, st.sampled_from(SCHEMAS)),
        st.builds(
            lambda it: {"json": it}, st.sampled_from(['{"type":"boolean"}', "{", "null", ""])
        ),
        st.builds(lambda it: {"regex": it}, st.sampled_from(PATTERNS)),
        st.builds(lambda it: {"grammar": it}, st.sampled_from(GRAMMARS)),
        st.builds(lambda it: {"choice": it}, st.sampled_from(CHOICES)),
        st.builds(lambda it: {"json_object": it}, st.sampled_from([True, False, "x", 1])),
        st.builds(lambda it: {"structural_tag": it}, st.sampled_from(TAGS)),
    )
    more = st.sampled_from(
        [
            {},
            {},
            {},
            {"_backend": "no-such"},
            {"_backend": "guidance"},
            {"whitespace_pattern": "("},
            {"disable_fallback": True},
            {"disable_any_whitespace": "x"},
            {"regex": "a"},
            {"no_such": 1},
        ]
    )
    whole = st.builds(lambda one, two: one | two, of_kind, more)
    return st.one_of(whole, whole, whole, ANY)


def response_format() -> st.SearchStrategy[Any]:
    schema = st.sampled_from(SCHEMAS)
    whole = st.builds(
        lambda it: {"type": "json_schema", "json_schema": {"name": "x", "schema": it}}, schema
    )
    return st.one_of(
        whole,
        whole,
        whole,
        st.builds(
            lambda kind: {"type": kind},
            st.sampled_from(["text", "json_object", "json_schema", "yaml", "", None, 1, []]),
        ),
        st.builds(lambda it: {"type": "json_schema", "json_schema": it}, ANY),
        ANY,
    )


# Every field that the gpu lane reads, and some that it must refuse or let pass.
SAMPLING: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "temperature": numbers(0, 0.7, 1),
    "top_p": numbers(0.1, 0.9),
    "top_k": numbers(1, 50),
    "min_p": numbers(0.1),
    "presence_penalty": numbers(0.5, -2),
    "frequency_penalty": numbers(0.5, 2),
    "repetition_penalty": numbers(1.1, 0.1),
    "seed": numbers(7),
    "n": numbers(2, 3, 5),
    "max_tokens": numbers(1, 8, 30, "8"),
    "max_completion_tokens": numbers(1, 8),
    "min_tokens": numbers(2, 8),
    "logprobs": st.one_of(st.booleans(), numbers(1, 5)),
    "top_logprobs": numbers(1, 5, 20),
    "stop": st.one_of(
        st.sampled_from(["e", ["e", " "], [], [""], "", ["x"] * 500, ["y" * 5_000]]), ANY
    ),
    "stop_token_ids": tokens(),
    "allowed_token_ids": tokens(),
    "bad_words": st.one_of(
        st.sampled_from([["a"], [""], [" "], ["a" * 9_000], ["é", "深"], ["w"] * 2_000]), ANY
    ),
    "logit_bias": st.one_of(
        st.dictionaries(
            st.sampled_from(
                [str(token) for token in TOKENS] + ["x", "1.5", "\N{ARABIC-INDIC DIGIT THREE}", ""]
            ),
            st.sampled_from((-100, 100, 0.5, *NUMBERS, "1", None)),
            max_size=3,
        ),
        st.just({str(token): -100 for token in range(3_000)}),
        ANY,
    ),
    "ignore_eos": st.booleans() | ANY,
    "skip_special_tokens": st.booleans() | ANY,
    "include_stop_str_in_output": st.booleans() | ANY,
    "response_format": response_format(),
    "structured_outputs": constraint(),
    "stream": st.sampled_from([False, None]),
    "user": ANY,
    "metadata": ANY,
    "priority": numbers(0),
    "truncate_prompt_tokens": numbers(5, -1),
    "prompt_logprobs": numbers(1, -1),
    "echo": st.booleans(),
    "best_of": numbers(2),
    "suffix": ANY,
    "use_beam_search": st.booleans(),
    "guided_json": st.sampled_from(SCHEMAS),
    "extra_args": ANY,
    "vllm_xargs": ANY,
    "kv_transfer_params": ANY,
    "cache_salt": ANY,
    "request_id": ANY,
    "stream_interval": numbers(1),
    "detokenize": st.booleans(),
    "thinking_token_budget": numbers(5),
    "no_such_field": ANY,
}
CHAT: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    **SAMPLING,
    "chat_template": st.sampled_from(TEXTS) | ANY,
    "chat_template_kwargs": st.one_of(
        st.sampled_from(
            [
                {},
                {"enable_thinking": False},
                {"messages": []},
                {"self": 1},
                {"tokenize": True},
                {"": 1},
                {"chat_template": "x"},
                {"bos_token": 3},
                {"raise_exception": None},
                {"range": 1},
            ]
        ),
        ANY,
    ),
    "add_generation_prompt": st.booleans() | ANY,
    "continue_final_message": st.booleans() | ANY,
    "reasoning_effort": st.sampled_from(["high", "", "none"]) | ANY,
    "tools": ANY,
    "tool_choice": ANY,
    "functions": ANY,
    "documents": ANY,
    "mm_processor_kwargs": ANY,
    "modalities": ANY,
}


PARTS: Final = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.sampled_from(TEXTS)),
    st.sampled_from(
        [
            {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}},
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            {"type": "text"},
            {"type": "text", "text": None},
            {"text": "no type"},
            "a text",
        ]
    ),
    ANY,
)
ROLES: Final = st.sampled_from(
    [
        "user",
        "user",
        "user",
        "system",
        "assistant",
        "tool",
        "developer",
        "",
        "x" * 500,
        "<|im_start|>",
    ]
)
MESSAGE: Final = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content}, ROLES, st.sampled_from(TEXTS)
    ),
    st.builds(
        lambda role, content: {"role": role, "content": content},
        ROLES,
        st.one_of(st.lists(PARTS, max_size=4), ANY),
    ),
    st.builds(
        lambda more: {"role": "assistant", "content": "x"} | more,
        st.fixed_dictionaries(
            {}, optional={"name": ANY, "tool_calls": ANY, "tool_call_id": ANY, "reasoning": ANY}
        ),
    ),
    ANY,
)
MESSAGES: Final = st.one_of(
    st.lists(MESSAGE, min_size=1, max_size=3),
    st.lists(MESSAGE, min_size=1, max_size=3),
    st.just([{"role": "user", "content": "a"}] * 300),
    ANY,
)
PROMPT: Final = st.one_of(
    st.sampled_from(TEXTS),
    tokens(),
    st.sampled_from([["a", "b"], [[1, 2], [3]], [0] * 1_024, [0] * 1_023, [3] * 5_000]),
    ANY,
)

# there is most to them, so they are drawn more often
CONSTRAINTS: Final = ("response_format", "structured_outputs")
SHORT_PARAMS: Final = {"max_tokens": 4, "temperature": 0}


@st.composite
def _body(
    draw: st.DrawFn, good: Body, text: tuple[str, st.SearchStrategy[Any]], fields: Mapping[str, Any]
) -> Body:
    body = dict(good)
    if draw(st.integers(0, 2)) == 0:
        body[text[0]] = draw(text[1])
    often = [name for name in CONSTRAINTS if name in fields] * 8
    least = int(body == good)  # else nothing of it is hostile
    names = st.lists(
        st.sampled_from([*sorted(fields), *often]), min_size=least, max_size=3, unique=True
    )
    for name in draw(names):
        body[name] = draw(fields[name])
    return body


def chats() -> st.SearchStrategy[Body]:
    good = {"messages": [{"role": "user", "content": "Name a topic."}], **SHORT_PARAMS}
    return _body(good, ("messages", MESSAGES), CHAT)


def completions() -> st.SearchStrategy[Body]:
    return _body({"prompt": "import os", **SHORT_PARAMS}, ("prompt", PROMPT), SAMPLING)


def embeddings() -> st.SearchStrategy[Body]:
    fields = {
        "dimensions": numbers(8, 64, 256, 257),
        "encoding_format": st.sampled_from(["float", "base64", "x"]) | ANY,
        "output_dtype": st.sampled_from(["float", "float16", "int8", "binary", "ubinary", "x"])
        | ANY,
        "truncate_prompt_tokens": numbers(5),
        "user": ANY,
        "task": ANY,
        "no_such_field": ANY,
    }
    many = st.lists(st.sampled_from(TEXTS[2:]), max_size=3) | st.lists(tokens(), max_size=2)
    return _body({"input": "import os"}, ("input", st.one_of(PROMPT, many)), fields)


def scorings() -> st.SearchStrategy[Body]:
    """For `/v1/score`, `/v1/rerank` and `/classify`: each finds its own fields among them."""
    texts = st.one_of(
        st.sampled_from(TEXTS),
        st.lists(st.sampled_from(TEXTS), max_size=3),
        st.lists(PARTS, max_size=2),
        ANY,
    )
    good = {
        "text_1": "import os",
        "text_2": ["a", "b"],
        "query": "import",
        "documents": ["a", {"text": "b"}],
        "input": ["a", "b"],
    }
    fields = {
        **dict.fromkeys(
            ("text_1", "text_2", "query", "documents", "queries", "items", "data_1", "data_2"),
            texts,
        ),
        "top_n": numbers(1),
        "return_documents": st.booleans() | ANY,
        "use_activation": st.booleans() | ANY,
        "max_tokens_per_doc": numbers(5),
        "instruction": ANY,
        "truncate_prompt_tokens": numbers(5),
        "no_such_field": ANY,
    }
    return _body(good, ("input", texts), fields)


def every_constraint() -> list[Body]:
    """A chat with each of the schemas, patterns and grammars, so that none is left to chance."""
    good = {
        "messages": [{"role": "user", "content": "Name a topic."}],
        "max_tokens": 30,
        "temperature": 0,
    }
    wanted: list[Body] = [{"json": schema} for schema in SCHEMAS if isinstance(schema, dict)]
    for name, values in (
        ("regex", PATTERNS),
        ("grammar", GRAMMARS),
        ("choice", CHOICES),
        ("structural_tag", TAGS),
    ):
        wanted += [{name: value} for value in values]
    return [good | {"structured_outputs": one} for one in wanted]


def drawn(bodies: st.SearchStrategy[Body], number: int) -> list[Body]:
    """``number`` of them, the same in each run."""
    found: list[Body] = []

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )
    @given(bodies)
    def draw(body: Body) -> None:
        found.append(body)

    draw()
    return found[:number]

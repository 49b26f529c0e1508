"""From an OpenAI request body to a call of the engine: which model, which tokens, how long. Runs in threads."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson

from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.engine.engines import EngineCall, RequestRefused
from penstock_workers.lanes.gpu.engine.upstream import upstream
from penstock_workers.lanes.gpu.requests.documents import check_named_tokens, check_tokens, refuse_templates
from penstock_workers.lanes.gpu.requests.fields import check_types
from penstock_workers.lanes.gpu.requests.sampling import asked_tokens, sampling_params
from penstock_workers.lanes.gpu.requests.scoring import (
    Classes,
    ScoringFacts,
    ask_of,
    occupied,
    pooling_params,
    tokens_of,
)
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.scoring.asks import Task, task_of
from penstock_workers.lanes.shown import shown

PRIORITIES = {"urgent": -1, "normal": 0, "low": 1}  # vLLM runs lower ones first
TRIM_ROUNDS = 4  # a shorter text may split into a few more tokens than were counted
EFFORT = "reasoning_effort"
PROBE_TOKEN = 0  # every vocabulary has it
TRIM_MARGIN = 8  # tokens cut beyond what is too much, for the same reason


class UnknownModel(RequestRefused):
    """The request names a model that this worker does not host."""


class ContextOverflow(RequestRefused):
    """Prompt and answer do not fit into the model's context."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is needed to know of the loaded model."""

    names: frozenset[str]
    context: int  # tokens, prompt and answer together
    defaults: Mapping[str, Any]  # sampling parameters that the model's makers recommend
    pools: bool  # whether it embeds or classifies instead of generating
    classes: Classes = field(default_factory=Classes)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the reply repeats of the request."""

    model: str
    chat: bool
    base64: bool = False


class CallBuilder:
    """Builds calls for one loaded model. ``build`` may run in several threads: each has a tokenizer of its own."""

    def __init__(
        self,
        settings: GpuSettings,
        tokenizer: Any,
        facts: ModelFacts,
        adapters: Adapters,
        *,
        chat_template: str | None = None,
    ) -> None:
        """``chat_template``: the operator's, in place of the model's own."""
        self._model = settings.model or ""
        self._adapters = adapters
        self._tokenizer = tokenizer
        if chat_template is not None:
            self._tokenizer = copy.deepcopy(tokenizer)  # the engine's own stays as it is
            self._tokenizer.chat_template = chat_template
        self._vocabulary = len(tokenizer)
        self._facts = facts
        self._threads = threading.local()
        self._copying = threading.Lock()
        self._numbers = count()

    def build(self, request: Request) -> tuple[EngineCall, int]:
        """The call and the tokens that it may come to occupy. Raises RequestRefused."""
        body = _read(request.body)
        check_types(body)
        model = body.get("model") or self._model
        lora = self._lora(model)
        task = task_of(request.endpoint)
        if task is not None:
            return self._scoring(task, request, model, lora)
        if request.endpoint.endswith("/embeddings"):
            return self._embedding(request, body, model, lora)
        if self._facts.classes.labels:
            raise RequestRefused(f"{self._model} classifies and does not generate: send items to /classify")
        if self._facts.pools:
            raise RequestRefused(f"{self._model} embeds and does not generate: send items to /v1/embeddings")
        if request.endpoint.endswith("/chat/completions"):
            chat = True
        elif request.endpoint.endswith("/completions"):
            chat = False
        else:
            raise RequestRefused(
                f"the gpu lane has no {request.endpoint}: chat/completions, completions, embeddings, rerank, score, classify"
            )
        if body.get("stream"):
            raise RequestRefused("stream: results are stored whole; leave it out")
        if not chat and body.get(EFFORT) is not None:
            raise RequestRefused(f"{EFFORT}: completions have no chat template that could read it; leave it out")
        refuse_templates(body)
        check_named_tokens(body, self._vocabulary)
        token_ids, max_tokens = self._fitted(request, body, chat)
        params = sampling_params(body, defaults=self._facts.defaults, max_tokens=max_tokens, schema=request.schema)
        call = EngineCall(self._id(request), token_ids, params, lora, PRIORITIES[request.priority], Facts(model, chat))
        return call, len(token_ids) + max_tokens * (params.n or 1)

    def probe(self) -> EngineCall:
        """The least that the engine must be able to do."""
        if self._facts.classes.labels:
            params = pooling_params()
        elif self._facts.pools:
            params = upstream("vllm", "PoolingParams")(task="embed")
        else:
            params = sampling_params({"temperature": 0}, defaults={}, max_tokens=1, schema=None)
        return EngineCall(f"probe#{next(self._numbers)}", [PROBE_TOKEN], params)

    def _id(self, request: Request) -> str:
        return f"{request.tag}#{next(self._numbers)}"  # the same item may come again while its last try still ends

    def _lora(self, model: str) -> Any:
        if model in self._facts.names:
            return None
        adapter = self._adapters.get(model)
        if adapter is not None:
            if adapter.problem is not None:
                raise RequestRefused(f"model is {model!r}, an adapter that cannot be used: {adapter.problem}")
            return adapter.request()
        known = ", ".join(sorted(self._facts.names | self._adapters.names()))
        raise UnknownModel(f"this worker hosts no model {model!r}; it has {known}")

    # -- length ----------------------------------------------------------------------------------------------------

    def _fitted(self, request: Request, body: dict[str, Any], chat: bool) -> tuple[list[int], int]:
        """Tokens of the prompt, and how many the answer may have; what does not fit is cut as the job says."""
        token_ids, asked = self._tokens(body, chat), asked_tokens(body)
        context = self._facts.context
        if len(token_ids) + (asked or 1) <= context:
            return token_ids, asked or context - len(token_ids)
        if request.on_overflow != "fail" and len(token_ids) < context:
            return token_ids, context - len(token_ids)
        if request.on_overflow == "trim":
            reserved = min(asked or 1, context // 2)  # half of the context at most: the rest is for the document
            return self._trimmed(body, chat, token_ids, reserved), reserved
        raise ContextOverflow(
            f"This model's maximum context length is {context} tokens. However, the prompt has {len(token_ids)} and "
            f"max_tokens asks for {asked or 1}; shorten it, or submit with on_overflow"
        )

    def _trimmed(self, body: dict[str, Any], chat: bool, token_ids: list[int], reserved: int) -> list[int]:
        """Cut the end of the longest text until the prompt fits beside ``reserved`` tokens of answer."""
        limit = self._facts.context - reserved
        if not chat and not isinstance(body.get("prompt"), str):
            return token_ids[:limit]
        tokenizer = self._own_tokenizer()
        for _ in range(TRIM_ROUNDS):
            excess = len(token_ids) - limit
            if excess <= 0:
                return token_ids
            holder, key = _longest_text(body) if chat else (body, "prompt")
            text = tokenizer(holder[key], add_special_tokens=False).input_ids
            if len(text) <= excess:
                break
            holder[key] = tokenizer.decode(text[: max(0, len(text) - excess - TRIM_MARGIN)])
            token_ids = self._tokens(body, chat)
        if len(token_ids) <= limit:
            return token_ids
        raise ContextOverflow(f"trimming the longest text does not make the prompt fit {limit} tokens")

    # -- tokens ----------------------------------------------------------------------------------------------------

    def _own_tokenizer(self) -> Any:
        """Fast tokenizers refuse to be used by two threads at once."""
        own = getattr(self._threads, "tokenizer", None)
        if own is None:
            with self._copying:
                own = self._threads.tokenizer = copy.deepcopy(self._tokenizer)
        return own

    def _tokens(self, body: dict[str, Any], chat: bool) -> list[int]:
        return self._chat_tokens(body) if chat else self._prompt_tokens(body.get("prompt"), "prompt")

    def _chat_tokens(self, body: dict[str, Any]) -> list[int]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestRefused("messages is empty or no list: give at least one message")
        tokenizer = self._own_tokenizer()
        body["messages"] = [_plain(message, place) for place, message in enumerate(messages)]
        try:
            text = tokenizer.apply_chat_template(
                body["messages"],
                tokenize=False,
                add_generation_prompt=body.get("add_generation_prompt", not body.get("continue_final_message", False)),
                continue_final_message=body.get("continue_final_message", False),
                **self._template_variables(body),
            )
        except Exception as error:  # templates are programs of the model's makers: they raise what they like
            raise RequestRefused(f"the model's chat template refuses these messages: {error}") from error
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def _template_variables(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises RequestRefused for an effort that the model's template would ignore."""
        given = dict(body.get("chat_template_kwargs") or {})
        effort = body.get("reasoning_effort")
        if effort is None:
            return given
        if EFFORT not in str(getattr(self._tokenizer, "chat_template", "")):
            raise RequestRefused(
                f"{EFFORT} is {shown(effort)}, and this model's chat template does not read it: leave it out, or give the "
                "variable that the template reads in chat_template_kwargs"
            )
        return {EFFORT: effort} | given

    def _prompt_tokens(self, prompt: Any, field: str) -> list[int]:
        if isinstance(prompt, str) and prompt:
            return list(self._own_tokenizer()(prompt).input_ids)
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], (str, list)):
            return check_tokens(prompt, field, self._vocabulary)
        raise RequestRefused(f"{field} is {type(prompt).__name__}: give one text or one list of token ids per item")

    # -- embeddings ------------------------------------------------------------------------------------------------

    def _embedding(self, request: Request, body: dict[str, Any], model: str, lora: Any) -> tuple[EngineCall, int]:
        if not self._facts.pools:
            raise RequestRefused(f"{self._model} generates and does not embed: set gpu.engine.runner to 'pooling'")
        if self._facts.classes.labels:
            raise RequestRefused(f"{self._model} classifies and does not embed: send items to /classify")
        token_ids = self._prompt_tokens(body.get("input"), "input")
        if len(token_ids) > self._facts.context:
            if request.on_overflow == "fail":
                raise ContextOverflow(
                    f"This model's maximum context length is {self._facts.context} tokens. However, the input has "
                    f"{len(token_ids)}; shorten it, or submit with on_overflow"
                )
            token_ids = token_ids[: self._facts.context]
        params = upstream("vllm", "PoolingParams")(task="embed", dimensions=body.get("dimensions"))
        facts = Facts(model, chat=False, base64=body.get("encoding_format") == "base64")
        call = EngineCall(self._id(request), token_ids, params, lora, PRIORITIES[request.priority], facts)
        return call, len(token_ids)

    # -- scores and classes ----------------------------------------------------------------------------------------

    def _scoring(self, task: Task, request: Request, model: str, lora: Any) -> tuple[EngineCall, int]:
        classes, context = self._facts.classes, self._facts.context
        ask = ask_of(task, request.body, classes)
        call_id, priority = self._id(request), PRIORITIES[request.priority]
        parts = []
        for place, text in enumerate(ask.texts):
            ids, sides = tokens_of(self._own_tokenizer(), text, cut_at=None)
            if len(ids) > context:
                if request.on_overflow == "fail":
                    raise ContextOverflow(
                        f"This model's maximum context length is {context} tokens. However, entry {place} has {len(ids)}; "
                        "shorten it, or submit with on_overflow"
                    )
                ids, sides = tokens_of(self._own_tokenizer(), text, cut_at=context)
            if not ids:
                raise RequestRefused(f"entry {place} has no token: give a text that is not blank")
            params = pooling_params(ask, sides if classes.reads_sides else ())
            parts.append(EngineCall(f"{call_id}.{place}", ids, params, lora, priority))
        facts = ScoringFacts(ask, model, classes.labels)
        call = EngineCall(call_id, [], parts[0].params, lora, priority, facts, parts=parts)
        return call, occupied(parts)


def _read(body: bytes) -> dict[str, Any]:
    """Raises RequestRefused: a hook of the job may have made anything of it."""
    try:
        read = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(f"the body is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise RequestRefused(f"the body is {shown(read)}: give an object")
    return read


def _plain(message: Any, place: int) -> dict[str, Any]:
    """A message whose content is one text: what chat templates of text models take. Raises RequestRefused."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestRefused(f"messages[{place}] is {shown(message)}: give an object with a role and a content")
    content = message.get("content")
    if isinstance(content, str):
        return message
    if not isinstance(content, list):
        seen = "null" if content is None else shown(content)
        raise RequestRefused(f"messages[{place}].content is {seen}: give a text")
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
        raise RequestRefused("the gpu lane takes text only: a message has a part that is none")
    return message | {"content": "\n".join(str(text) for text in texts)}


def _longest_text(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    return max(body["messages"], key=lambda message: len(message.get("content") or "")), "content"

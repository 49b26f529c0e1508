"""Chats with images, audio or tools: vLLM's own renderer makes the prompts, as in its server.

Runs in threads.

It never sees an address that a document brings: what it gets has been read already (``media.py``).
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Mapping
from typing import Any, Final

from penstock_producer.errors import seen
from penstock_workers.lanes.gpu.engine.engines import RequestRefused, upstream
from penstock_workers.lanes.gpu.requests.media import Allowance, Media
from penstock_workers.lanes.gpu.requests.prompts import (
    Prompt,
    messages_of,
    parts_of,
    template_variables,
)

# Of a message: what templates read besides its content. All else is left out.
_KEPT: Final = ("name", "tool_calls", "tool_call_id", "reasoning")
# The engine would take an item of this cache for one that it has, though the request that brought
# it was never sent.
_WITHOUT_CACHE: Final = "skip_mm_cache"


class RenderedChats:
    """Implements ``prompts.ChatPrompts`` by the renderer of an engine."""

    decodes_media = True

    def __init__(
        self, renderer: Any, media: Media, template: str | None, models_template: str
    ) -> None:
        """Render by vLLM's ``renderer``.

        ``template`` is the operator's; ``models_template`` the one that the tokenizer has."""
        self._renderer, self._media, self._template = renderer, media, template
        self._read_template = template or models_template
        self._params = upstream("vllm.renderers", "ChatParams")
        # A prompt that is too long is found by its length, and the error says what Penstock's
        # options do about it.
        self._tokenizing = dataclasses.replace(
            renderer.default_chat_tok_params, max_total_tokens=None
        )
        # processors of images are not made for several threads
        self._one_at_a_time = threading.Lock()

    @staticmethod
    def suits(renderer: Any) -> bool:
        """Return whether this vLLM has a renderer that can be used here.

        Older versions have none, or cannot do without the cache that it shares with the engine."""
        render = getattr(renderer, "render_chat", None)
        return render is not None and _WITHOUT_CACHE in inspect.signature(render).parameters

    def read(self, body: dict[str, Any]) -> None:
        """Decode images and sounds here, in the thread that calls."""
        left = self._media.allowance()
        body["messages"] = [
            self._message(message, place, left) for place, message in messages_of(body)
        ]

    def prompt(self, body: Mapping[str, Any]) -> Prompt:
        variables = template_variables(body, self._read_template) | {
            "tools": body.get("tools") or None
        }
        params = self._params(
            chat_template=self._template,
            chat_template_kwargs=variables,
            tool_choice=body.get("tool_choice"),
        )
        try:
            with self._one_at_a_time:
                _, rendered = self._renderer.render_chat(
                    [[dict(message) for message in body["messages"]]],
                    params,
                    self._tokenizing,
                    skip_mm_cache=True,
                )
        except MemoryError:
            raise
        # of the template, or of the model's processor, which raise what they like
        except Exception as error:
            raise RequestRefused(
                "the model's chat template or processor refuses these messages: "
                f"{type(error).__name__}: {error}"
            ) from error
        (one,) = rendered
        if "prompt_token_ids" not in one:
            raise RequestRefused(
                f"this model takes prompts of another kind ({seen(one.get('type'))}): use the "
                "sidecar"
            )
        token_ids = list(one["prompt_token_ids"])
        if one["type"] != "multimodal":
            return Prompt(token_ids)
        return Prompt(token_ids, one, _held_bytes(one["mm_kwargs"]))

    def _message(self, message: dict[str, Any], place: int, left: Allowance) -> dict[str, Any]:
        kept = {name: message[name] for name in _KEPT if message.get(name) is not None}
        content = message.get("content")
        if content is None and "tool_calls" in kept:
            return {"role": message["role"], "content": None} | kept
        if not isinstance(content, str):
            parts = parts_of(content, place)
            content = [
                self._media.part(part, f"messages[{place}].content[{number}]", left)
                for number, part in enumerate(parts)
            ]
        return {"role": message["role"], "content": content} | kept


def _held_bytes(value: Any) -> int:
    """Count the bytes of the tensors in what a processor made: by modality, item and field."""
    if isinstance(value, Mapping):
        return sum(_held_bytes(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_held_bytes(each) for each in value)
    size = getattr(value, "nbytes", None)
    if size is not None:
        return int(size)
    inner = getattr(value, "data", None)  # vLLM's field around a tensor
    return 0 if inner is None else _held_bytes(inner)

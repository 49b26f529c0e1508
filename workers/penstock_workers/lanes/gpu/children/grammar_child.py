"""Tries grammars, in a child process.

It compiles what answers must follow with the engine's own backend, and sees whether any answer can
begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from penstock_workers.lanes.gpu.children.line_child import DETAIL_CHARS, bound_memory, serve
from penstock_workers.lanes.gpu.engine.engines import upstream

PROGRAM: Final = "penstock_workers.lanes.gpu.children.grammar_child"
CONSTRAINTS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
TOKENS_TRIED: Final = 24  # of an answer: what compiles at once may still explode as an answer grows
# Of the CPU, for one token of it: a usual one takes microseconds, and all answers in the engine
# wait for each other's.
TOKEN_S: Final = 0.25
# through the vocabulary, so that tokens of all kinds are among those tried
WIDE_STEP: Final = 7_919


def named(wanted: Mapping[str, Any]) -> str:
    """Name the field of the request, or of the job."""
    name = next(iter(wanted))
    return (
        "the JSON schema (response_format, or the job's response_schema)"
        if name == "json"
        else f"structured_outputs.{name}"
    )


class _Trial:
    """vLLM's manager of structured outputs, with a config that has what it reads."""

    def __init__(self, model_config: Any, outputs_config: Any) -> None:
        self._model, self._outputs = model_config, outputs_config
        config = SimpleNamespace(
            model_config=model_config,
            structured_outputs_config=outputs_config,
            scheduler_config=SimpleNamespace(max_num_seqs=1),
            parallel_config=SimpleNamespace(distributed_executor_backend=None),
            speculative_config=None,
            num_speculative_tokens=0,
        )
        self._manager = upstream("vllm.v1.structured_output", "StructuredOutputManager")(config)
        self._request = upstream("vllm.v1.structured_output.request", "StructuredOutputRequest")
        self._params = upstream("vllm", "SamplingParams")
        self._constrained = upstream("vllm.sampling_params", "StructuredOutputsParams")

    def problem(self, wanted: dict[str, Any]) -> str | None:
        field = named(wanted)
        try:
            params = self._params(max_tokens=1, structured_outputs=self._constrained(**wanted))
            params.verify(self._model, None, self._outputs, self._manager.tokenizer)
            grammar = self._compiled(params)
        except Exception as error:  # vLLM's, xgrammar's and llguidance's, in whatever class
            return f"{field} cannot be used: {' '.join(str(error).split())}"[:DETAIL_CHARS]
        return (
            f"{field} cannot be used: {why}"
            if (why := self._misstep(grammar)) is not None
            else None
        )

    def _compiled(self, params: Any) -> Any:
        asked = SimpleNamespace(
            request_id="trial",
            sampling_params=params,
            structured_output_request=self._request.from_sampling_params(params),
        )
        self._manager.grammar_init(asked)
        # its public property does not wait
        return asked.structured_output_request._grammar.result()

    def _misstep(self, grammar: Any) -> str | None:
        """Walk through the beginning of a long answer, as the engine would: why it could not."""
        mask = self._manager.backend.allocate_token_bitmask(1)
        for place in range(TOKENS_TRIED):
            began = time.process_time()
            mask.zero_()
            grammar.fill_bitmask(mask, 0)
            if place == 0 and not mask.any():
                return "no answer can satisfy it, as it refers to itself without an end"
            token = next_token(mask[0].tolist(), place, self._manager.tokenizer.eos_token_id)
            if (
                token is None
                or not grammar.accept_tokens("trial", [token])
                or grammar.is_terminated()
            ):
                return None
            if (took_s := time.process_time() - began) > TOKEN_S:
                return (
                    f"token {place} of an answer takes {took_s:.1f} s, and all others in the "
                    "engine would wait for it"
                )
        return None


def next_token(words: list[int], place: int, end: int | None) -> int | None:
    """Return one of the tokens whose bits are set in words of 32, other than ``end``.

    The search begins elsewhere at each place."""
    for shift in range(len(words)):
        at = (place * WIDE_STEP + shift) % len(words)
        word = words[at] & 0xFFFFFFFF
        if end is not None and end // 32 == at:
            word &= ~(1 << end % 32)
        if word:
            return 32 * at + (word & -word).bit_length() - 1
    return None


def _made(facts: Any) -> Callable[[Any], str | None]:
    """Make what answers each constraint with null, or with why it cannot be used."""
    trial = _Trial(*facts)
    bound_memory()
    return trial.problem


if __name__ == "__main__":
    serve(_made)

"""vLLM's own batch class on the items of a setup: `python -m benchmarks.engines.offline_vllm
SETUP`."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

from benchmarks.engines.items import Item, items
from benchmarks.engines.setup import Setup
from benchmarks.engines.work import Work, cpu_seconds, orders, say, setup_of

WARM_UP = 1_000_000_000  # items of this number on are for warming up


class Offline:
    """One ``vllm.LLM``."""

    def __init__(self, setup: Setup) -> None:
        vllm: Any = import_module("vllm")
        self._llm = vllm.LLM(**setup.arguments)
        self._tokenizer = self._llm.get_tokenizer()
        self._params = vllm.SamplingParams(
            max_tokens=setup.output_tokens, temperature=0, ignore_eos=True
        )

    def chat(self, lines: list[Item]) -> Work:
        """All conversations in one call: templates, tokens and inference."""
        messages = [line["body"]["messages"] for line in lines]
        started, cpu_s = time.monotonic(), cpu_seconds()
        outputs = self._llm.chat(messages, self._params, use_tqdm=False)
        return _work(outputs, time.monotonic() - started, cpu_seconds() - cpu_s)

    def generate(self, lines: list[Item]) -> Work:
        """Token ids in one call: inference only, the prompts are made beforehand."""
        texts = [
            self._tokenizer.apply_chat_template(
                line["body"]["messages"], tokenize=False, add_generation_prompt=True
            )
            for line in lines
        ]
        prompts = [
            {"prompt_token_ids": ids}
            for ids in self._tokenizer(texts, add_special_tokens=False).input_ids
        ]
        started, cpu_s = time.monotonic(), cpu_seconds()
        outputs = self._llm.generate(prompts, self._params, use_tqdm=False)
        return _work(outputs, time.monotonic() - started, cpu_seconds() - cpu_s)

    def forget(self) -> None:
        """Empty the prefix cache, so that the same items are as new."""
        self._llm.reset_prefix_cache()


def _work(outputs: list[Any], seconds: float, cpu_s: float) -> Work:
    return Work(len(outputs), seconds, cpu_s)


def main() -> None:
    setup = setup_of(sys.argv)
    started = time.monotonic()
    offline = Offline(setup)
    start_s = time.monotonic() - started
    ways = {"chat": offline.chat, "generate": offline.generate}
    offline.chat(items(setup, setup.max_num_seqs, first=WARM_UP))
    say(start_s)
    for way, number, first in orders():
        offline.forget()
        say(ways[way](items(setup, number, first=first)))


if __name__ == "__main__":
    main()

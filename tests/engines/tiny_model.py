"""A model small enough to be made on the spot: seeded random weights, a tokenizer trained on the standard library.

Nothing is downloaded. What it says makes no sense, but it is said by the real engine, from real weights, at real lengths.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sysconfig
from typing import Any

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FILES = 120  # of the standard library, for the tokenizer
CONTEXT = 2048


def make_model(
    folder: pathlib.Path, kind: str = "llama", *, hidden: int = 256, layers: int = 4, vocab: int = 4096
) -> None:
    """Write config, tokenizer and weights; ``kind`` is `llama` (3.4 M parameters, bf16) or `bert` (an encoder, fp32)."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(transformers, vocab)
    torch.manual_seed(0)
    shape = {
        "vocab_size": len(tokenizer), "hidden_size": hidden, "intermediate_size": hidden * 2,
        "num_hidden_layers": layers, "num_attention_heads": 4, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(max_position_embeddings=512, **shape))
    else:
        config = transformers.LlamaConfig(
            num_key_value_heads=2, head_dim=64, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, **shape,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_adapter(folder: pathlib.Path, *, hidden: int = 256, layers: int = 4, rank: int = 8) -> None:
    """A LoRA adapter for the llama of ``make_model``, strong enough to change what it says."""
    torch, safetensors = importlib.import_module("torch"), importlib.import_module("safetensors.torch")
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    weights = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, 256)  # four heads of 64
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden, rank)
    safetensors.save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 32, "target_modules": ["o_proj"],
        "lora_dropout": 0.0, "bias": "none",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


def _tokenizer(transformers: Any, vocab: int) -> Any:
    tokenizers = importlib.import_module("tokenizers")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    sources = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:FILES]
    bpe.train([str(source) for source in sources], trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|pad|>",
        unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", model_max_length=CONTEXT,
    )  # fmt: skip
    fast.chat_template = CHAT_TEMPLATE
    return fast

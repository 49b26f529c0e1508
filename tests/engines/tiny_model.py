"""A model made on the spot, without any download: random weights, a tokenizer trained on the
standard library's source.

The same arguments make the same files. What it says means nothing; how much it computes is up to
``Shape``. Needs torch and transformers, which only the environment with vLLM has, but for
``weights=False``: then transformers alone.
"""

from __future__ import annotations

import json
import os
import sysconfig
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

Architecture = Literal["llama", "qwen3", "bert", "bert-classifier", "idefics3", "qwen2-audio"]

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[UNK]",
)
TRAINED_ON = 120  # files of the standard library: enough for thousands of tokens, in a second
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IMAGE, SOUND = "<image>", "<|AUDIO|>"
PARTS_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}{% "
    "if part['type'] == 'image' %}<image>{% elif part['type'] == 'audio' "
    "%}<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% "
    "endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}"
)
# of each image, whatever its size: a square of 32 pixels in patches of 8, four to a token
IMAGE_PATCHES = 4
IMAGE_TOKENS = IMAGE_PATCHES + 3  # with the marks around them
MEL_BINS = 16  # of a sound's spectrum; its length in the model is Whisper's, 30 s
_MARKS = {
    "idefics3": (IMAGE, "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    "qwen2-audio": (SOUND, "<|audio_bos|>", "<|audio_eos|>"),
}
_CLASSES = {
    "qwen2-audio": ("Qwen2AudioConfig", "Qwen2AudioForConditionalGeneration"),
    "idefics3": ("Idefics3Config", "Idefics3ForConditionalGeneration"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "bert": ("BertConfig", "BertModel"),
    "bert-classifier": ("BertConfig", "BertForSequenceClassification"),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the model is. The default has a few million parameters."""

    hidden: int = 256
    inner: int = 512  # of the feed-forward layers
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2  # generating models only
    head_size: int = 64
    vocabulary: int = 4096  # at most: the tokenizer may find fewer pairs worth a token
    # rows of the embedding, where a large model is to be imitated; None = the vocabulary
    embedded: int | None = None
    context: int = 2048
    tied: bool = True  # input and output embeddings are one
    marks: tuple[str, ...] = ()  # tokens of their own that an answer's text shows, such as <think>
    labels: tuple[str, ...] = ("relevance",)  # classifiers only; one makes it a cross-encoder


def make_model(
    folder: Path,
    architecture: Architecture = "llama",
    shape: Shape | None = None,
    *,
    seed: int = 0,
    weights: bool = True,
) -> Path:
    """Write config, tokenizer and weights into ``folder``, and hand it back.

    Without weights, load it as "dummy"."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    shape = replace(shape, marks=(*shape.marks, *_MARKS.get(architecture, ())))
    tokenizer = _tokenizer(shape)
    if architecture in _MARKS:
        tokenizer.chat_template = PARTS_TEMPLATE
        make = _image_processor if architecture == "idefics3" else _sound_processor
        make(tokenizer).save_pretrained(folder)
    if architecture == "bert-classifier":
        tokenizer.chat_template = None  # as of its kind: pairs are joined by the tokenizer
    tokenizer.save_pretrained(folder)
    config = _config(architecture, shape, tokenizer)
    if weights:
        _model(architecture, config, seed).save_pretrained(folder, safe_serialization=True)
        if architecture == "qwen2-audio":
            _name_as_published(folder / "model.safetensors")
    else:
        config.architectures = [_CLASSES[architecture][1]]
        config.save_pretrained(folder)
    return folder


def _name_as_published(file: Path) -> None:
    """transformers 5 writes the text model's weights one level deeper than the files that vLLM
    reads have them."""
    safetensors = import_module("safetensors.torch")
    weights = safetensors.load_file(file)
    deeper = "language_model.model.model."
    named = {
        name.replace(deeper, "language_model.model."): value for name, value in weights.items()
    }
    safetensors.save_file(named, file, metadata={"format": "pt"})


def make_adapter(folder: Path, shape: Shape | None = None, *, rank: int = 8, seed: int = 1) -> Path:
    """A LoRA adapter for the llama of this shape, strong enough to change what it says."""
    torch, safetensors = import_module("torch"), import_module("safetensors.torch")
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    weights = {}
    for layer in range(shape.layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, shape.heads * shape.head_size)
        weights[f"{name}.lora_B.weight"] = torch.randn(shape.hidden, rank)
    safetensors.save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 32,
        "target_modules": ["o_proj"],
        "lora_dropout": 0.0,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _tokenizer(shape: Shape) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parts, transformers = import_module("tokenizers"), import_module("transformers")
    tokenizer = parts.Tokenizer(parts.models.BPE())
    tokenizer.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = parts.decoders.ByteLevel()
    trainer = parts.trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=parts.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train([str(path) for path in standard_library()[:TRAINED_ON]], trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=shape.context,
    )
    fast.add_tokens([parts.AddedToken(mark, special=False) for mark in shape.marks])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def standard_library() -> list[Path]:
    """Modules that every Python brings along: text without a download."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def _image_processor(tokenizer: Any) -> Any:
    """One that needs Pillow alone."""
    transformers = import_module("transformers")
    images = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 32}, do_image_splitting=False
    )
    return transformers.Idefics3Processor(
        image_processor=images,
        tokenizer=tokenizer,
        image_seq_len=IMAGE_PATCHES,
        chat_template=PARTS_TEMPLATE,
    )


def _sound_processor(tokenizer: Any) -> Any:
    transformers = import_module("transformers")
    sounds = transformers.WhisperFeatureExtractor(feature_size=MEL_BINS)
    return transformers.Qwen2AudioProcessor(sounds, tokenizer, chat_template=PARTS_TEMPLATE)


def sound_tokens(seconds: float) -> int:
    """What a sound takes in the prompt, with the marks around it: the encoder halves a spectrum of
    100 columns a second twice."""
    half = (round(100 * seconds) - 1) // 2 + 1
    return (half - 2) // 2 + 1 + 2


def _config(architecture: Architecture, shape: Shape, tokenizer: Any) -> Any:
    if architecture == "idefics3":
        transformers = import_module("transformers")
        eyes = transformers.models.idefics3.configuration_idefics3.Idefics3VisionConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=32,
            patch_size=8,
        )
        return transformers.Idefics3Config(
            vision_config=eyes,
            text_config=_config("llama", shape, tokenizer),
            scale_factor=2,
            dtype="bfloat16",
            image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
            pad_token_id=tokenizer.pad_token_id,
        )
    if architecture == "qwen2-audio":
        transformers = import_module("transformers")
        ears = transformers.Qwen2AudioEncoderConfig(
            num_mel_bins=MEL_BINS,
            d_model=64,
            encoder_layers=1,
            encoder_attention_heads=2,
            encoder_ffn_dim=128,
        )
        text = transformers.Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=shape.context,
            tie_word_embeddings=shape.tied,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        return transformers.Qwen2AudioConfig(
            audio_config=ears,
            text_config=text,
            dtype="bfloat16",
            tie_word_embeddings=shape.tied,
            audio_token_index=tokenizer.convert_tokens_to_ids(SOUND),
            pad_token_id=tokenizer.pad_token_id,
        )
    make = getattr(import_module("transformers"), _CLASSES[architecture][0])
    sizes = {
        "vocab_size": shape.embedded or len(tokenizer),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.context,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if architecture == "bert":
        return make(**sizes, dtype="float32")
    if architecture == "bert-classifier":
        return make(**sizes, dtype="float32", id2label=dict(enumerate(shape.labels)))
    return make(
        **sizes,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        tie_word_embeddings=shape.tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="bfloat16",
    )


def _model(architecture: Architecture, config: Any, seed: int) -> Any:
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.manual_seed(seed)
    model = getattr(transformers, _CLASSES[architecture][1])(config)
    return model if architecture.startswith("bert") else model.to(torch.bfloat16)

"""Makes the small random model that the real engine serves on a CPU: weights, tokenizer, chat template, adapters.

A script of its own, run by the engine's Python (``vllm_cpu.make_model`` does), since only that environment has torch
and transformers: nothing of ``warmup_tasks`` may be imported here. Everything is seeded, so the same call writes the
same bytes. The weights mean nothing; they are scaled so that greedy answers have few near ties and so that an adapter
changes the answer.
"""

import argparse
import json
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 4096
CONTEXT_TOKENS = 4096
HEAD_DIMENSIONS = 64
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TURN = "<|im_end|>"
CORPUS_BYTES = 6_000_000
ADAPTERS: dict[str, tuple[int, int]] = {"adapter-a": (8, 101), "adapter-b": (8, 102), "adapter-rank16": (16, 103)}
"""Name → (rank, seed). The last one is there to be refused by a server with ``--max-lora-rank 8``."""

CHAT_TEMPLATE = """\
{%- if tools or date_string is defined %}<|im_start|>system
{%- if date_string is defined %}
Today is {{ date_string }}.
{%- endif %}
{%- if tools %}
You may call these functions:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
{%- endif %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content if message.content else '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""


def _corpus() -> Iterator[str]:
    """Yield the standard library's sources in a fixed order, up to ``CORPUS_BYTES``."""
    read = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        read += len(text)
        yield text
        if read > CORPUS_BYTES:
            return


def write_tokenizer(folder: Path) -> None:
    """Train a byte-level BPE tokenizer and write it with the chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=SPECIAL_TOKENS[0],
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def write_model(folder: Path, hidden: int, layers: int, seed: int) -> None:
    """Write a random Llama of ``hidden`` dimensions and ``layers`` layers in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_DIMENSIONS,
        num_key_value_heads=hidden // HEAD_DIMENSIONS,
        max_position_embeddings=CONTEXT_TOKENS,
        initializer_range=hidden**-0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index(END_OF_TURN),
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(4.0)
        model.lm_head.weight[: len(SPECIAL_TOKENS)].zero_()  # so answers rarely end at once
    model.to(torch.float32).save_pretrained(folder)


def write_adapter(folder: Path, base: Path, hidden: int, layers: int, rank: int, seed: int) -> None:
    """Write a LoRA adapter on q_proj and v_proj in PEFT's files, about as strong as the weights it changes."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {}
    for layer in range(layers):
        for projection in ("q_proj", "v_proj"):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, hidden, generator=generator) * hidden**-0.5
            tensors[f"{stem}.lora_B.weight"] = torch.randn(hidden, rank, generator=generator) * rank**-0.5
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": ["q_proj", "v_proj"],
    }
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def write_all(folder: Path, hidden: int, layers: int, seed: int) -> None:
    """Write ``model/`` and ``adapters/<name>/`` under ``folder``, which appears whole or not at all."""
    work = folder.with_name(folder.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)
    model = work / "model"
    model.mkdir(parents=True)
    write_model(model, hidden, layers, seed)
    write_tokenizer(model)
    for name, (rank, adapter_seed) in ADAPTERS.items():
        write_adapter(work / "adapters" / name, model, hidden, layers, rank, seed + adapter_seed)
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)


def main() -> None:
    """Parse the command line and write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_all(args.folder, args.hidden, args.layers, args.seed)


if __name__ == "__main__":
    main()

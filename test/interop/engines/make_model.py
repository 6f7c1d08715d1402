"""Writes one small random model in the three forms that the engines read.

    make_model.py OUT

OUT/model is a Llama checkpoint (config.json, model.safetensors, and the
vocabulary of Penstock's built-in model), OUT/adapter a LoRA adapter of it, and
OUT/model.gguf the same weights for llama.cpp. Weights are 32-bit floats drawn
from a fixed seed, large enough that greedy decoding has hardly any near ties, so
that engines which compute in 32 bits continue a prompt with the same tokens. Only
the standard library is used.
"""

import array
import json
import math
import pathlib
import random
import shutil
import struct
import sys

VOCABULARY = pathlib.Path(__file__).parents[3] / "internal/edge/prep/token/builtin"
HIDDEN, LAYERS, HEADS, HEAD, INNER = 64, 2, 2, 32, 128
CONTEXT, THETA, EPSILON = 8192, 10000.0, 1e-5
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class Weights:
    """Named matrices in the order and under the names of a Llama checkpoint."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors = {}

    def draw(self, name, rows, columns, scale=1.0):
        spread = scale / math.sqrt(columns)
        values = array.array("f", (self.random.gauss(0, spread) for _ in range(rows * columns)))
        self.tensors[name] = ((rows, columns), values)

    def ones(self, name, size):
        self.tensors[name] = ((size,), array.array("f", [1.0]) * size)


def llama(vocabulary):
    w = Weights(7)
    w.draw("model.embed_tokens.weight", vocabulary, HIDDEN, math.sqrt(HIDDEN))
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        w.ones(at + "input_layernorm.weight", HIDDEN)
        for part in "qkvo":
            w.draw(at + f"self_attn.{part}_proj.weight", HIDDEN, HIDDEN, 2)
        w.ones(at + "post_attention_layernorm.weight", HIDDEN)
        w.draw(at + "mlp.gate_proj.weight", INNER, HIDDEN, 2)
        w.draw(at + "mlp.up_proj.weight", INNER, HIDDEN, 2)
        w.draw(at + "mlp.down_proj.weight", HIDDEN, INNER, 2)
    w.ones("model.norm.weight", HIDDEN)
    w.draw("lm_head.weight", vocabulary, HIDDEN, 4)
    return w.tensors


def adapter():
    w = Weights(8)
    for i in range(LAYERS):
        for part in "qv":
            at = f"base_model.model.model.layers.{i}.self_attn.{part}_proj."
            w.draw(at + "lora_A.weight", 8, HIDDEN, 2)
            w.draw(at + "lora_B.weight", HIDDEN, 8, 2)
    return w.tensors


def write_safetensors(path, tensors):
    header, body = {}, bytearray()
    for name, (shape, values) in tensors.items():
        data = values.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def rotated(values):
    """Rows of a query or key matrix in llama.cpp's order: its heads turn
    neighbouring pairs, a Llama checkpoint's turn the two halves of a head."""
    out = array.array("f")
    for head in range(HEADS):
        for i in range(HEAD):
            row = head * HEAD + (i % 2) * (HEAD // 2) + i // 2
            out += values[row * HIDDEN : (row + 1) * HIDDEN]
    return out


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.weight"
    return NAMES[stem] + ".weight"


def gguf_value(v):
    """A metadata value: its type and its bytes."""
    if isinstance(v, str):
        data = v.encode()
        return 8, struct.pack("<Q", len(data)) + data
    if isinstance(v, bool):
        return 7, struct.pack("<?", v)
    if isinstance(v, int):
        return 4, struct.pack("<I", v)
    if isinstance(v, float):
        return 6, struct.pack("<f", v)
    kind = 5 if isinstance(v[0], int) else 8  # a list of 32-bit integers or of strings
    items = [struct.pack("<i", x) if kind == 5 else gguf_value(x)[1] for x in v]
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(items)


def write_gguf(path, tensors, tokens, kinds, merges, begin, end):
    meta = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.rope.dimension_count": HEAD,
        "llama.rope.freq_base": THETA,
        "llama.attention.layer_norm_rms_epsilon": EPSILON,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": begin,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.chat_template": TEMPLATE,
    }
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(meta)))
    for key, v in meta.items():
        kind, data = gguf_value(v)
        head += gguf_value(key)[1] + struct.pack("<I", kind) + data
    body = bytearray()
    for name, (shape, values) in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            values = rotated(values)
        # Dimensions from the innermost; type 0 is a 32-bit float.
        head += gguf_value(gguf_name(name))[1]
        head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, len(body))
        body += values.tobytes()
        body += bytes(-len(body) % 32)
    head += bytes(-len(head) % 32)
    path.write_bytes(head + body)


def main(out):
    out = pathlib.Path(out)
    model, lora = out / "model", out / "adapter"
    for directory in (model, lora):
        directory.mkdir(parents=True, exist_ok=True)
    vocabulary = json.loads((VOCABULARY / "tokenizer.json").read_text())
    ids = dict(vocabulary["model"]["vocab"])
    special = {t["content"]: t["id"] for t in vocabulary["added_tokens"]}
    ids |= special
    tokens = [t for t, _ in sorted(ids.items(), key=lambda item: item[1])]
    begin, end = special["<|begin|>"], special["<|end|>"]

    shutil.copy(VOCABULARY / "tokenizer.json", model)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "tie_word_embeddings": False,
        "vocab_size": len(tokens),
        "bos_token_id": begin,
        "eos_token_id": end,
    }
    (model / "config.json").write_text(json.dumps(config, indent=1))
    (model / "generation_config.json").write_text(json.dumps({"bos_token_id": begin, "eos_token_id": end}))
    (model / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<|begin|>",
                "eos_token": "<|end|>",
                "model_max_length": CONTEXT,
                "clean_up_tokenization_spaces": False,
                "chat_template": TEMPLATE,
            },
            indent=1,
        )
    )
    tensors = llama(len(tokens))
    write_safetensors(model / "model.safetensors", tensors)
    (lora / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": 8,
                "lora_alpha": 16,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": ["q_proj", "v_proj"],
            }
        )
    )
    write_safetensors(lora / "adapter_model.safetensors", adapter())
    kinds = [3 if t in special else 1 for t in tokens]  # 3 is a control token, 1 a normal one
    merges = [" ".join(m) for m in vocabulary["model"]["merges"]]
    write_gguf(out / "model.gguf", tensors, tokens, kinds, merges, begin, end)


if __name__ == "__main__":
    main(sys.argv[1])

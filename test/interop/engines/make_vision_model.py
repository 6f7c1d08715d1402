"""Writes a small random Qwen2-VL checkpoint.

    make_vision_model.py OUT

OUT/model is what engines and Penstock load: config.json, the vocabulary of
Penstock's built-in model with Qwen2-VL's special tokens after it, the settings of
its image and video processors, and 32-bit weights drawn from a fixed seed. Only the
standard library is used.
"""

import json
import pathlib
import sys

from make_model import VOCABULARY, Weights, write_safetensors

HIDDEN, LAYERS, HEADS, HEAD, INNER = 64, 12, 2, 32, 128
VISION, DEPTH, VISION_HEADS, PATCH, MERGE = 64, 2, 2, 14, 2
CONTEXT = 8192
SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' or 'image' in p or 'image_url' in p %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif p['type'] == 'video' or 'video' in p %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in p %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def weights(vocabulary):
    w = Weights(11)
    w.draw("model.embed_tokens.weight", vocabulary, HIDDEN, HIDDEN**0.5)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        w.ones(at + "input_layernorm.weight", HIDDEN)
        for part in "qkv":
            w.draw(at + f"self_attn.{part}_proj.weight", HIDDEN, HIDDEN, 2)
            row(w, at + f"self_attn.{part}_proj.bias", HIDDEN)
        w.draw(at + "self_attn.o_proj.weight", HIDDEN, HIDDEN, 2)
        w.ones(at + "post_attention_layernorm.weight", HIDDEN)
        w.draw(at + "mlp.gate_proj.weight", INNER, HIDDEN, 2)
        w.draw(at + "mlp.up_proj.weight", INNER, HIDDEN, 2)
        w.draw(at + "mlp.down_proj.weight", HIDDEN, INNER, 2)
    w.ones("model.norm.weight", HIDDEN)
    w.draw("lm_head.weight", vocabulary, HIDDEN, 4)
    patch = 3 * 2 * PATCH * PATCH
    w.draw("visual.patch_embed.proj.weight", VISION, patch, 4)
    w.tensors["visual.patch_embed.proj.weight"] = ((VISION, 3, 2, PATCH, PATCH), w.tensors["visual.patch_embed.proj.weight"][1])
    for i in range(DEPTH):
        at = f"visual.blocks.{i}."
        for norm in ("norm1", "norm2"):
            w.ones(at + norm + ".weight", VISION)
            row(w, at + norm + ".bias", VISION)
        for name, rows, columns in [
            ("attn.qkv", 3 * VISION, VISION), ("attn.proj", VISION, VISION), ("mlp.fc1", 4 * VISION, VISION), ("mlp.fc2", VISION, 4 * VISION),
        ]:  # fmt: skip
            w.draw(at + name + ".weight", rows, columns, 2)
            row(w, at + name + ".bias", rows)
    merged = VISION * MERGE * MERGE
    w.ones("visual.merger.ln_q.weight", VISION)
    row(w, "visual.merger.ln_q.bias", VISION)
    for name, rows in [("visual.merger.mlp.0", merged), ("visual.merger.mlp.2", HIDDEN)]:
        w.draw(name + ".weight", rows, merged, 4)
        row(w, name + ".bias", rows)
    return w.tensors


def row(w, name, size):
    w.draw(name, 1, size, 0.5)
    w.tensors[name] = ((size,), w.tensors[name][1])


def main(out):
    model = pathlib.Path(out) / "model"
    model.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((VOCABULARY / "tokenizer.json").read_text())
    last = max(t["id"] for t in tokenizer["added_tokens"])
    ids = {}
    for t in SPECIAL:
        last += 1
        ids[t] = last
        tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": last, "content": t})
    (model / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    special = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    vocabulary = last + 1
    text = {
        "model_type": "qwen2_vl_text", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}, "use_sliding_window": False, "vocab_size": vocabulary,
        "bos_token_id": special["<|begin|>"], "eos_token_id": special["<|end|>"],
    }  # fmt: skip
    config = text | {
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "torch_dtype": "float32",
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "vision_config": {
            "model_type": "qwen2_vl", "depth": DEPTH, "embed_dim": VISION, "hidden_size": HIDDEN, "num_heads": VISION_HEADS,
            "mlp_ratio": 4, "in_chans": 3, "in_channels": 3, "patch_size": PATCH, "spatial_merge_size": MERGE,
            "spatial_patch_size": PATCH, "temporal_patch_size": 2, "hidden_act": "quick_gelu",
        },
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(config, indent=1))
    (model / "generation_config.json").write_text(json.dumps({"bos_token_id": special["<|begin|>"], "eos_token_id": special["<|end|>"]}))
    (model / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|end|>",
                "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE,
            },  # fmt: skip
            indent=1,
        )
    )
    processor = {
        "min_pixels": 4 * 28 * 28, "max_pixels": 1024 * 28 * 28, "patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
    }  # fmt: skip
    (model / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))
    write_safetensors(model / "model.safetensors", weights(vocabulary))


if __name__ == "__main__":
    main(sys.argv[1])

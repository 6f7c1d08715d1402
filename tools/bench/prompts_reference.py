"""Make conversations of a text, and print, as JSON, them and the seconds and ids that
transformers' fast tokenizer takes and gives for apply_chat_template(tokenize=True).
prompts.sh runs it.

    python prompts_reference.py MODEL_DIR TEXT

Of each size there are several conversations, no two of the same text. Each is one of a
tokenizer that has seen other text ("cold"), and again with a question and an answer
more ("growing").
"""

import json
import pathlib
import sys
import time

from transformers import PreTrainedTokenizerFast

# Tokens of a prompt, its messages, and how many conversations there are.
SIZES = [(500, 5, 21), (8_000, 21, 11), (100_000, 101, 5)]
PER_TOKEN = 4.6  # characters of English


def conversation(text, at, size, messages):
    length = int(size * PER_TOKEN / messages)
    roles = ["system"] + ["user", "assistant"] * messages
    # Two messages more, for the turn after.
    parts = [{"role": roles[i], "content": text[at + i * length : at + (i + 1) * length]} for i in range(messages + 2)]
    parts[-2]["role"], parts[-1]["role"] = "assistant", "user"
    return parts, at + (messages + 2) * length


def main():
    model, text = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text(errors="replace")
    config = json.loads((model / "tokenizer_config.json").read_text())
    named = {k: v["content"] if isinstance(v, dict) else v for k, v in config.items() if k in ("bos_token", "eos_token") and v}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), chat_template=config["chat_template"], **named)

    def timed(messages):
        start = time.perf_counter()
        ids = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
        return time.perf_counter() - start, ids

    at = len(text) // 2
    for i in range(40):  # words that both know before
        timed([{"role": "user", "content": text[at + i * 4096 : at + (i + 1) * 4096]}])
    at = 0
    for size, messages, count in SIZES:
        cases = []
        for _ in range(count):
            parts, at = conversation(text, at, size, messages)
            assert len(parts[-1]["content"]) > 0 and at < len(text) // 2, "the text is too short"
            cold, ids = timed(parts[:-2])
            growing, more = timed(parts)
            cases.append({"messages": parts, "cold": cold, "ids": ids, "growing": growing, "more": more})
        print(json.dumps({"size": size, "cases": cases}))


if __name__ == "__main__":
    main()

"""Tokenizers of no model: a text is cut at the special tokens of the model that is
named, and at words. Ids are the same in every run.
"""

import re
import zlib

# The special tokens of each model that the tests name, as far as parsers look at them.
THINK = ["<think>", "</think>"]
CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
QWEN = [*CHATML, *THINK, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
DEEPSEEK = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
]  # fmt: skip
GLM = [
    *THINK, "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>",
]  # fmt: skip
KIMI = [
    *THINK, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_end|>", "<|tool_call_argument_begin|>", "<|im_end|>", "<|im_user|>", "<|im_assistant|>",
]  # fmt: skip
MINIMAX = [*THINK, "<minimax:tool_call>", "</minimax:tool_call>", "]<]minimax[>["]
GEMMA4 = ["<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>"]
SPECIAL = {
    "gpt2": ["<|endoftext|>"],
    "Qwen3-Coder": [t for t in QWEN if t not in THINK],
    "DeepSeek-R1-Distill": [*DEEPSEEK[:4], *THINK],
    "Qwen": QWEN,
    "DeepSeek-R1": [*DEEPSEEK, *THINK],
    "DeepSeek": [*DEEPSEEK, *THINK],
    "GLM": GLM,
    "Kimi": KIMI,
    "MiniMax": MINIMAX,
    "gemma-4": GEMMA4,
    "Olmo": CHATML,  # its thoughts are marked with text
    "granite": ["<|tool_call|>", "<tool_call>", "</tool_call>", "<|end_of_text|>"],
    "Llama": ["<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"],
    "step3": [*DEEPSEEK, *THINK, "<steptml:invoke>"],
    "Step-3": [*QWEN],
    "Holo2": QWEN,
    "Nemotron": [*CHATML, *THINK, "<tool_call>", "</tool_call>"],
}
PIECES = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


class Tokenizer:
    """Has those methods of a tokenizer of transformers that the tests call."""

    def __init__(self, name: str):
        self.name_or_path = name
        self.chat_template = None
        self.eos_token_id = None
        self.special = {}
        self.words = {}  # by id, once they were seen
        for model, special in SPECIAL.items():
            if model.lower() in name.lower():
                self.add_tokens(special)
                break

    def add_tokens(self, tokens, **_):
        tokens = [tokens] if isinstance(tokens, str) else tokens
        for token in tokens:
            self.special.setdefault(str(token), len(self.special) + 100)
        longest_first = sorted(self.special, key=len, reverse=True)
        self.cut = re.compile("|".join(map(re.escape, longest_first)))
        return len(tokens)

    def add_special_tokens(self, tokens, **_):
        return self.add_tokens([t for ts in tokens.values() for t in ([ts] if isinstance(ts, str) else ts)])

    def tokenize(self, text: str, **_) -> list[str]:
        tokens, at = [], 0
        if self.special:
            for m in self.cut.finditer(text):
                tokens += PIECES.findall(text[at : m.start()]) + [m.group()]
                at = m.end()
        return tokens + PIECES.findall(text[at:])

    def convert_tokens_to_ids(self, tokens):
        if isinstance(tokens, str):
            return self.id(tokens)
        return [self.id(t) for t in tokens]

    def id(self, token: str) -> int:
        if token in self.special:
            return self.special[token]
        number = 1000 + zlib.crc32(token.encode("utf-8", "surrogatepass"))
        self.words[number] = token
        return number

    def convert_ids_to_tokens(self, ids, **_):
        names = {i: t for t, i in self.special.items()}
        return [names.get(i) or self.words.get(i, f"<{i}>") for i in ids]

    def convert_tokens_to_string(self, tokens) -> str:
        return "".join(tokens)

    def encode(self, text: str, add_special_tokens: bool = True, **_) -> list[int]:
        return self.convert_tokens_to_ids(self.tokenize(text))

    def decode(self, ids, skip_special_tokens: bool = False, **_) -> str:
        ids = [ids] if isinstance(ids, int) else ids
        tokens = self.convert_ids_to_tokens(ids)
        return "".join(t for t in tokens if not (skip_special_tokens and t in self.special))

    def get_vocab(self) -> dict[str, int]:
        return dict(self.special) | {t: i for i, t in self.words.items()}

    get_added_vocab = get_vocab
    vocab = property(get_vocab)
    all_special_tokens = property(lambda self: list(self.special))
    all_special_ids = property(lambda self: list(self.special.values()))

    def __len__(self):
        return 1 << 33

    def __call__(self, text, **_):
        return {"input_ids": self.encode(text)}


TOKENIZERS: dict[str, Tokenizer] = {}


def get_tokenizer(tokenizer_name: str, *_, **__) -> Tokenizer:
    return TOKENIZERS.setdefault(tokenizer_name, Tokenizer(tokenizer_name))


class AutoTokenizer:
    from_pretrained = staticmethod(get_tokenizer)

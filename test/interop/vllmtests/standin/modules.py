"""Serves the modules that vLLM's tests import: vllm and what it needs.

Nothing of vLLM is executed. Classes of parsers and of the protocol are ours;
constants are read from vLLM's source; anything else can be imported, and says so when
it is used: that is a test of vLLM's inner parts.
"""

import ast
import importlib.abc
import importlib.machinery
import pathlib
import re
import sys
import types

from . import parsers, protocol, tokenizers
from .parsers import DelegatingParser, EngineConfig, Manager, PrivatePart, ReasoningParser, ToolParser, Unified

REPLACED = ("vllm", "transformers", "tokenizers", "xgrammar", "torch", "openai_harmony")


class Private:
    """Stands for what is not there; to use it is an error that names it."""

    def __init__(self, name: str):
        self.__dict__["_name"] = name

    def __call__(self, *_, **__):
        raise PrivatePart(f"{self._name} of vLLM")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Private(f"{self._name}.{name}")

    def __mro_entries__(self, _bases):
        return (type(re.sub(r"\W", "_", self._name), (), {"__init__": self.__call__}),)

    def __iter__(self):
        self()

    def __or__(self, _other):  # in annotations
        return self

    __ror__ = __getitem__ = __or__


def registered(source: pathlib.Path, table: str) -> dict[str, tuple[str, str]]:
    """vLLM's registry: the file and the class of each name."""
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == table:
            return ast.literal_eval(node.value)
    raise LookupError(f"{source} has no {table}")


class Registry(dict):
    """Our class for each class of vLLM's that stands for a parser, by its name."""

    def __init__(self, root: pathlib.Path):
        for kind, base in (("tool", ToolParser), ("reasoning", ReasoningParser)):
            package = f"{kind}_parsers" if kind == "tool" else kind
            table = registered(root / "vllm" / package / "__init__.py", f"_{kind.upper()}_PARSERS_TO_REGISTER")
            manager = type(f"{base.__name__}Manager", (Manager,), {"classes": {}})
            for name, (_, class_name) in table.items():
                manager.classes[name] = self.parser(class_name, base, name)
            self[manager.__name__] = manager

    def parser(self, class_name: str, base: type, name: str):
        family = parsers.family_of(name)
        if family is None:
            return self.setdefault(class_name, Private(f"the parser {name}, which Penstock has not,"))
        if class_name not in self:
            self[class_name] = type(class_name, (base,), {"family": family, "name": name})
        return self[class_name]

    def find(self, name: str):
        """The class of that name, where the name says which it is."""
        if name in self:
            return self[name]
        if m := re.fullmatch(r"(\w+)Parser(Tool|Reasoning)Adapter", name):
            return self.parser(name, ToolParser if m[2] == "Tool" else ReasoningParser, m[1])
        if (m := re.fullmatch(r"(\w+)Parser", name)) and parsers.family_of(m[1]):
            return self.parser(name, Unified, m[1])
        if (m := re.fullmatch(r"(\w+?)(_moe)?_config", name)) and parsers.family_of(m[1]):
            family = parsers.family_of(m[1])
            return lambda thinking=None, **_: EngineConfig(
                family, {} if thinking is None else {"enable_thinking": thinking}
            )
        return None


def detokenize_incrementally(tokenizer, all_input_ids, prev_tokens, prefix_offset, read_offset, **_):
    tokens = tokenizer.convert_ids_to_tokens(all_input_ids[-1:])
    return tokens, tokenizer.decode(all_input_ids[-1:]), prefix_offset + 1, read_offset + 1


class ParserManager:
    @staticmethod
    def get_parser(tool_parser_name=None, reasoning_parser_name=None, enable_auto_tools=False, model_name=None):
        tools = REGISTRY["ToolParserManager"].get(tool_parser_name) if tool_parser_name else None
        reasoning = REGISTRY["ReasoningParserManager"].get(reasoning_parser_name) if reasoning_parser_name else None
        return type("Parser", (DelegatingParser,), {"tool_parser_cls": tools, "reasoning_parser_cls": reasoning})


OURS = {
    "ToolParser": ToolParser,
    "ReasoningParser": ReasoningParser,
    "DelegatingParser": DelegatingParser,
    "ParserEngine": Unified,
    "Parser": Unified,
    "ParserEngineToolAdapter": ToolParser,
    "ParserEngineReasoningAdapter": ReasoningParser,
    "ParserManager": ParserManager,
    "ParserState": parsers.ParserState,
    "AutoTokenizer": tokenizers.AutoTokenizer,
    "PreTrainedTokenizerBase": tokenizers.Tokenizer,
    "PreTrainedTokenizer": tokenizers.Tokenizer,
    "PreTrainedTokenizerFast": tokenizers.Tokenizer,
    "TokenizerLike": tokenizers.Tokenizer,
    "get_tokenizer": tokenizers.get_tokenizer,
    "is_mistral_tokenizer": lambda _: False,
    "detokenize_incrementally": detokenize_incrementally,
}
REGISTRY: Registry
ROOT: pathlib.Path


class Module(types.ModuleType):
    """A module whose names are found when they are asked for."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = OURS.get(name)
        if value is None:
            value = REGISTRY.find(name)
        if value is None:
            value = self.constants().get(name)
        if value is None:
            value = Private(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def constants(self) -> dict:
        """The module's constants, from vLLM's source."""
        path = ROOT / (self.__name__.replace(".", "/") + ".py")
        values: dict = {}
        if not path.is_file():
            return values
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm."):
                for alias in node.names:
                    if alias.name.isupper():
                        values[alias.asname or alias.name] = getattr(
                            __import__(node.module, fromlist=[alias.name]), alias.name
                        )
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                node = ast.Assign([node.target], node.value)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    code = compile(ast.fix_missing_locations(ast.Expression(node.value)), str(path), "eval")
                    values[node.targets[0].id] = eval(code, {"__builtins__": {"frozenset": frozenset}}, values)
                except Exception:  # it is no constant
                    continue
        return values


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REPLACED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = Module(spec.name)
        for cls in protocol.MODULES.get(spec.name, ()):
            setattr(module, cls.__name__, cls)
        return module

    def exec_module(self, module):
        pass


def install(root: pathlib.Path):
    global ROOT, REGISTRY
    ROOT = root
    REGISTRY = Registry(root)
    sys.meta_path.insert(0, Finder())

"""vLLM's parser classes, which ask Penstock's parser through the driver."""

import dataclasses
import enum
import functools
import re
from typing import ClassVar

from .driver import Session, Token, Undeclared, start_after
from .families import FAMILIES, Family
from .protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)


# Markers that end reasoning.
ENDS = ("</think>", "</seed:think>", "</mm:think>", "<channel|>", "[/THINK]")


class PrivatePart(AttributeError):
    """A test asks for something of vLLM's that is no part of what a parser says."""


class Finish(str):
    """The text of a last, empty delta: the answer has ended."""


def functions_of(*sources) -> list[dict]:
    """The functions of the first source that is a list of tools with some."""
    for tools in sources:
        if not isinstance(tools, list) or not tools:
            continue
        functions = []
        for tool in tools:
            tool = tool if isinstance(tool, dict) else tool.model_dump()
            f = tool.get("function") or tool
            parameters = f.get("parameters")
            if isinstance(f.get("name"), str):
                functions.append({"name": f["name"], "parameters": parameters if isinstance(parameters, dict) else None})
        return functions
    return []


def joined(events: list[dict], kind: str) -> str | None:
    return "".join(e["text"] for e in events if e["kind"] == kind) or None


def calls_of(events: list[dict]) -> list[ToolCall]:
    calls = []
    for e in events:
        if e["kind"] == "call":
            calls.append(ToolCall(id=e["id"], function=FunctionCall(name=e["name"], arguments="", id=e["id"])))
        elif e["kind"] == "arguments":
            calls[e["index"]].function.arguments += e["text"]
    return calls


def delta_of(events: list[dict]) -> DeltaMessage | None:
    """What one push said, as one message; None if it said nothing."""
    deltas: dict[int, DeltaToolCall] = {}
    for e in events:
        if e["kind"] == "call":
            function = DeltaFunctionCall(name=e["name"], arguments="")
            deltas[e["index"]] = DeltaToolCall(id=e["id"], type="function", index=e["index"], function=function)
        elif e["kind"] == "arguments":
            function = DeltaFunctionCall(arguments="")
            delta = deltas.setdefault(e["index"], DeltaToolCall(index=e["index"], function=function))
            delta.function.arguments += e["text"]
    reasoning, content = joined(events, "reasoning"), joined(events, "content")
    if not (reasoning or content or deltas):
        return None
    return DeltaMessage(reasoning=reasoning, content=content, tool_calls=list(deltas.values()))


class Base:
    """What all of them have."""

    family: ClassVar[Family] = Family()
    name: ClassVar[str] = ""
    engine_based_streaming = True

    def __init__(self, tokenizer, tools=None, *_, chat_template_kwargs=None, parser_engine_config=None, **__):
        if tokenizer is None:
            raise ValueError("The model tokenizer must be passed to the parser")
        self.model_tokenizer = tokenizer
        self.tools = tools if isinstance(tools, list) else []
        self.template_kwargs = chat_template_kwargs or {}
        if parser_engine_config is not None:
            self.family, self.template_kwargs = parser_engine_config.family, parser_engine_config.template_kwargs
        self.session = None
        self.prompt = ""  # that the answer is to, where a test gives one

    def __getattr__(self, name):
        raise PrivatePart(f"{type(self).__name__}.{name} of vLLM")

    @property
    def vocab(self):
        return self.model_tokenizer.get_vocab()

    def start(self, request=None) -> str:
        """Where the answer begins: the end of the prompt says it, or of what would be the prompt."""
        after = start_after(self.family.reasoning, self.prompt) if self.prompt else ""
        given = getattr(request, "chat_template_kwargs", None)
        return after or self.family.start(self.template_kwargs | (given if isinstance(given, dict) else {}))

    @property
    def special(self) -> list[str]:
        tokens = getattr(self.model_tokenizer, "all_special_tokens", None)
        return [t for t in tokens if isinstance(t, str)] if isinstance(tokens, list) else []

    def pieces(self, text: str, ids=None) -> list[str]:
        """The text of a delta, cut at its special tokens: at tokens of ids, if the test gives some."""
        vocab = self.vocab if ids else {}
        tokens = [t for t in self.special if not ids or vocab.get(t) in ids]
        if not tokens:
            return [text]
        cuts = re.split("(" + "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) + ")", text)
        return [Token(t) if t in tokens else t for t in cuts if t] or [""]

    def open(self, request=None, streamed=False, **of) -> Session:
        given = getattr(request, "chat_template_kwargs", None)
        if isinstance(given, dict) and given.get("force_nonempty_content") is True:
            of["fallback"] = "repeat" if streamed else "move"
        functions = functions_of(getattr(request, "tools", None), self.tools)
        of["special"] = self.special
        if functions or not (of.get("tools") and of.get("reasoning")):
            return Session(functions=functions, **of)
        return Undeclared(**of)

    def whole(self, session: Session, text: str) -> list[dict]:
        return session.push(*self.pieces(text)) + session.close()

    def streamed(self, previous: str, current: str, delta: str, ids, begin) -> DeltaMessage | None:
        """Takes the next delta of an answer, which begin begins.

        Some tests give no previous text with any delta, others one that was not streamed.
        """
        if self.session is None or not previous and current == delta:
            self.session = begin()
            if previous:
                self.session.push(*self.pieces(previous))
        if isinstance(delta, Finish):
            return self.finish_streaming()
        return delta_of(self.session.push(*self.pieces(delta, ids)))

    def finish_streaming(self) -> DeltaMessage | None:
        if self.session is None:
            return None
        session, self.session = self.session, None
        return delta_of(session.close())

    @property
    def parser_engine_config(self):
        return EngineConfig(self.family, self.template_kwargs)

    def set_prompt_token_ids(self, prompt_token_ids):
        self.prompt = self.model_tokenizer.decode(list(prompt_token_ids))

    adjust_initial_state_from_prompt = set_prompt_token_ids

    def adjust_request(self, request):
        # Our decoder keeps the markup of a format and drops other special tokens.
        if self.family.tools or self.family.reasoning:
            request.skip_special_tokens = False
        return request


class ToolParser(Base):
    def open_answer(self, request) -> Session:
        return self.open(request, tools=self.family.tools, start="closed")

    def extract_tool_calls(self, model_output, request=None):
        events = self.whole(self.open_answer(request), model_output)
        calls = calls_of(events)
        return ExtractedToolCallInformation(
            tools_called=bool(calls), tool_calls=calls, content=joined(events, "content")
        )

    def extract_tool_calls_streaming(
        self,
        previous_text,
        current_text,
        delta_text,
        previous_token_ids=(),
        current_token_ids=(),
        delta_token_ids=(),
        request=None,
    ):
        begin = functools.partial(self.open_answer, request)
        return self.streamed(previous_text, current_text, delta_text, delta_token_ids, begin)


class ReasoningParser(Base):
    def __init__(self, tokenizer, *args, **kwargs):
        super().__init__(tokenizer, None, *args, **kwargs)

    def open_reasoning(self, request=None) -> Session:
        return self.open(request, reasoning=self.family.reasoning, start=self.start(request))

    def extract_reasoning(self, model_output, request=None):
        events = self.whole(self.open_reasoning(request), model_output)
        return joined(events, "reasoning"), joined(events, "content")

    def extract_reasoning_streaming(
        self,
        previous_text,
        current_text,
        delta_text,
        previous_token_ids=(),
        current_token_ids=(),
        delta_token_ids=(),
    ):
        return self.streamed(previous_text, current_text, delta_text, delta_token_ids, self.open_reasoning)

    def is_reasoning_end(self, input_ids) -> bool:
        """Whether reasoning has ended in the text of input_ids, a prompt or an answer."""
        text = self.model_tokenizer.decode(list(input_ids))
        after = start_after(self.family.reasoning, text)
        if after:
            return after != "open"
        session = Session(tools=self.family.tools, reasoning=self.family.reasoning, start=self.start())
        session.push(*self.pieces(text))
        return not session.thinking

    def is_reasoning_end_streaming(self, input_ids, delta_ids) -> bool:
        return self.is_reasoning_end(input_ids)

    @property
    def reasoning_end_token_ids(self) -> frozenset[int]:
        return frozenset(i for token, i in self.vocab.items() if token in ENDS)

    def thoughts(self, token_ids) -> list[bool]:
        """Of each token, whether it is reasoning when it has come."""
        session, thoughts = self.open_reasoning(), []
        for i in token_ids:
            session.push(*self.pieces(self.model_tokenizer.decode([i])))
            thoughts.append(session.thinking)
        return thoughts

    def count_reasoning_tokens(self, token_ids) -> int:
        return sum(self.thoughts(token_ids))

    def extract_content_ids(self, input_ids) -> list[int]:
        """The ids behind the marker that ends reasoning."""
        thoughts = self.thoughts(input_ids)
        if not thoughts or thoughts[-1]:
            return []
        last = max((i for i, thought in enumerate(thoughts) if thought), default=-2)
        if last < 0 and self.start() == "open":
            last = -1
        return list(input_ids)[last + 2 :]


class Unified(ToolParser):
    """A parser of reasoning and calls at once."""

    reasoning_parser_cls = None
    tool_parser_cls = None

    def open_answer(self, request, streamed=False) -> Session:
        chosen = bool(functions_of(getattr(request, "tools", None))) and getattr(request, "tool_choice", None)
        tools = "" if chosen == "none" else self.family.tools
        start = self.start(request)
        return self.open(request, streamed, tools=tools, reasoning=self.family.reasoning, start=start)

    open_reasoning = ReasoningParser.open_reasoning
    extract_reasoning = ReasoningParser.extract_reasoning
    extract_reasoning_streaming = ReasoningParser.extract_reasoning_streaming
    is_reasoning_end = ReasoningParser.is_reasoning_end
    is_reasoning_end_streaming = ReasoningParser.is_reasoning_end_streaming
    reasoning_end_token_ids = ReasoningParser.reasoning_end_token_ids
    thoughts = ReasoningParser.thoughts
    count_reasoning_tokens = ReasoningParser.count_reasoning_tokens
    extract_content_ids = ReasoningParser.extract_content_ids

    def parse(self, model_output, request, enable_auto_tools=False, model_output_token_ids=()):
        events = self.whole(self.open_answer(request), model_output)
        calls = [c.function for c in calls_of(events)]
        return joined(events, "reasoning"), joined(events, "content"), calls or None

    def parse_delta(self, delta_text, delta_token_ids, request, prompt_token_ids=None, *, finished=False):
        if self.session is None:
            if prompt_token_ids:
                self.set_prompt_token_ids(prompt_token_ids)
            self.session = self.open_answer(request, streamed=True)
        events = self.session.push(*self.pieces(delta_text, delta_token_ids))
        if finished:
            events += self.session.close()
            self.session = None
        return delta_of(events)


class DelegatingParser(Unified):
    """Takes the formats of two parsers together, as a request does."""

    def __init__(self, tokenizer, tools=None, *args, **kwargs):
        super().__init__(tokenizer, tools, *args, **kwargs)
        tool = getattr(self.tool_parser_cls, "family", Family())
        reasoning = getattr(self.reasoning_parser_cls, "family", Family())
        self.family = Family(tool.tools, reasoning.reasoning, reasoning.thinks, reasoning.switches)

    @property
    def reasoning_parser(self):
        return self.reasoning_parser_cls(self.model_tokenizer, chat_template_kwargs=self.template_kwargs)


class ParserState(enum.Enum):
    CONTENT = "content"
    REASONING = "reasoning"


@dataclasses.dataclass
class EngineConfig:
    """Stands for the tables of vLLM's engine: what they say of an answer's beginning."""

    family: Family
    template_kwargs: dict = dataclasses.field(default_factory=dict)
    strip_trailing_reasoning_whitespace: bool = True  # as ours does
    token_id_terminals: dict = dataclasses.field(default_factory=dict)
    arg_converter: object = None
    arg_value_extender: object = None  # how vLLM's engine streams, which makes no difference here

    @property
    def wait_for_reasoning(self) -> bool:
        return self.family.start(self.template_kwargs) == "open"

    @property
    def initial_state(self) -> ParserState:
        return ParserState.REASONING if self.wait_for_reasoning else ParserState.CONTENT

    def __getattr__(self, name):
        raise PrivatePart(f"ParserEngineConfig.{name} of vLLM")


class Manager:
    """A registry of parsers by name."""

    classes: ClassVar[dict[str, type]] = {}

    @classmethod
    def get(cls, name):
        if name not in cls.classes:
            raise KeyError(f"no parser is named {name!r}")
        return cls.classes[name]

    get_tool_parser = get_reasoning_parser = get


def family_of(name: str) -> Family | None:
    return FAMILIES.get(name) or FAMILIES.get(name.lower())

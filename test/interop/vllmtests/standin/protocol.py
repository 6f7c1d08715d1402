"""The protocol classes which vLLM's tests make and compare."""

import json
import types
import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")


class FunctionDefinition(Model):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatCompletionToolsParam(Model):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class ChatCompletionNamedFunction(Model):
    name: str


class ChatCompletionNamedToolChoiceParam(Model):
    function: ChatCompletionNamedFunction
    type: Literal["function"] = "function"


class FunctionCall(Model):
    id: str | None = Field(default=None, exclude=True)
    name: str
    arguments: str

    def __eq__(self, other):
        """White space between the tokens of arguments makes no difference."""
        if not isinstance(other, FunctionCall) or self.name != other.name:
            return False
        try:
            return json.loads(self.arguments) == json.loads(other.arguments)
        except ValueError:
            return self.arguments == other.arguments


class ToolCall(Model):
    id: str = Field(default_factory=lambda: f"chatcmpl-tool-{uuid.uuid4().hex}")
    type: Literal["function"] = "function"
    function: FunctionCall


class DeltaFunctionCall(BaseModel):
    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(Model):
    id: str | None = None
    type: Literal["function"] | None = None
    index: int
    function: DeltaFunctionCall | None = None


class DeltaMessage(Model):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] = Field(default_factory=list)


class ExtractedToolCallInformation(BaseModel):
    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


class ChatCompletionRequest(Model):
    messages: list[Any] = Field(default_factory=list)
    model: str | None = None
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    skip_special_tokens: bool | None = None

    def to_sampling_params(self, *_, **__):
        return types.SimpleNamespace(skip_special_tokens=self.skip_special_tokens is not False)

    def model_post_init(self, _context):
        if self.tool_choice is None:
            self.tool_choice = "auto" if self.tools else "none"


class ResponsesRequest(Model):
    input: Any = None
    model: str | None = None
    tools: list[Any] = Field(default_factory=list)
    tool_choice: Any = "auto"
    include_reasoning: bool = True


MODULES = {
    "vllm.entrypoints.generate.base.protocol": (
        FunctionDefinition,
        FunctionCall,
        ToolCall,
        DeltaFunctionCall,
        DeltaToolCall,
        DeltaMessage,
        ExtractedToolCallInformation,
    ),
    "vllm.entrypoints.openai.chat_completion.protocol": (
        ChatCompletionRequest,
        ChatCompletionToolsParam,
        ChatCompletionNamedFunction,
        ChatCompletionNamedToolChoiceParam,
        FunctionDefinition,
    ),
    "vllm.entrypoints.openai.responses.protocol": (ResponsesRequest,),
}

"""Holds the official openai package against Penstock.

    openai_client.py UP_URL RECORDED_URL

UP_URL is a running "penstock up", RECORDED_URL a running test/recorded. Prints a
line for each check and exits 1 if any failed."""

import asyncio
import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel, Field

from harness import SCHEMA, TOO_LARGE, TOOLS, Answer, Call, Report, case, cases, expect, raises, valid, valid_calls

UP_MODEL = "penstock-tiny"


def connect(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, timeout=60)


class Weather(BaseModel):
    """schema.json as a type."""

    city: Literal["Paris", "Rome", "Köln"]
    days: int = Field(ge=1, le=7)
    sunny: bool
    unit: Literal["C", "F"]


# Requests


def chat_request(c):
    want, r = c.want, {"model": c.model, "messages": [{"role": "user", "content": c.prompt}]}
    if want.get("schema"):
        r["response_format"] = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
        return r
    r["tools"] = TOOLS
    if choice := want.get("tool_choice"):
        r["tool_choice"] = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
    if "parallel" in want:
        r["parallel_tool_calls"] = want["parallel"]
    if "effort" in want:
        r["reasoning_effort"] = want["effort"]
    return r


def flat(tools):
    return [{"type": "function", **t["function"]} for t in tools]


def response_request(c):
    want, r = c.want, {"model": c.model, "input": c.prompt}
    if want.get("schema"):
        r["text"] = {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}}
        return r
    r["tools"] = flat(TOOLS)
    if choice := want.get("tool_choice"):
        r["tool_choice"] = choice if choice == "required" else {"type": "function", "name": choice}
    if "parallel" in want:
        r["parallel_tool_calls"] = want["parallel"]
    if "effort" in want:
        r["reasoning"] = {"effort": want["effort"]}
    return r


# Answers


def of_message(message, finish):
    """What a chat message says, whole or put together by the client."""
    a = Answer(getattr(message, "reasoning_content", None) or "", message.content or "", finish=finish)
    a.calls = [Call(t.function.name, t.function.arguments, t.id) for t in message.tool_calls or []]
    return a


def of_completion(completion):
    choice = completion.choices[0]
    return of_message(choice.message, choice.finish_reason)


def of_chunks(stream):
    """Puts a streamed chat together by hand, as strictly as the API is described."""
    a, role = Answer(), None
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            expect(a.finish, None, "nothing after the finish")
            role = role or delta.role
            a.reasoning += getattr(delta, "reasoning_content", None) or ""
            a.content += delta.content or ""
            for t in delta.tool_calls or []:
                if t.index == len(a.calls):
                    expect(t.type, "function", "type of a call")
                    a.calls.append(Call(t.function.name, "", t.id))
                else:
                    expect((t.index, t.id, t.function.name), (len(a.calls) - 1, None, None), "a delta continues the last call")
                a.calls[t.index].arguments += t.function.arguments or ""
            a.finish = choice.finish_reason
    expect(role, "assistant", "role")
    return a


def of_response(response):
    a = Answer()
    for item in response.output:
        match item.type:
            case "reasoning":
                a.reasoning += "".join(part.text for part in item.content or [])
            case "message":
                a.content += "".join(part.text for part in item.content)
            case "function_call":
                a.calls.append(Call(item.name, item.arguments, item.call_id))
            case other:
                raise AssertionError(f"an item of type {other}")
    if response.status == "incomplete":
        expect(response.incomplete_details.reason, "max_output_tokens", "why it is incomplete")
        a.finish = "length"
    else:
        expect(response.status, "completed", "status")
        a.finish = "tool_calls" if a.calls else "stop"
    return a


def of_events(stream):
    """Puts a streamed response together by hand: every delta is followed by a done
    with all of it, and the last event has the whole response, which says the same."""
    a, number, last, text, item = Answer(), -1, None, "", None
    for event in stream:
        number += 1
        expect(event.sequence_number, number, "sequence number")
        last = event
        match event.type:
            case "response.output_item.added":
                expect(item, None, "items do not overlap")
                item, text = event.item, ""
                if item.type == "function_call":
                    a.calls.append(Call(item.name, "", item.call_id))
            case "response.output_item.done":
                expect((event.item.id, event.item.type), (item.id, item.type), "the item that is done")
                item = None
            case "response.output_text.delta":
                a.content, text = a.content + event.delta, text + event.delta
            case "response.reasoning_text.delta":
                a.reasoning, text = a.reasoning + event.delta, text + event.delta
            case "response.function_call_arguments.delta":
                a.calls[-1].arguments, text = a.calls[-1].arguments + event.delta, text + event.delta
            case "response.output_text.done" | "response.reasoning_text.done":
                expect(event.text, text, event.type)
            case "response.function_call_arguments.done":
                expect(event.arguments, text, event.type)
    expect(last.type in ("response.completed", "response.incomplete"), True, f"last event {last.type}")
    whole = of_response(last.response)
    a.finish = whole.finish
    expect((a.same(whole), [c.id for c in a.calls]), (True, [c.id for c in whole.calls]), f"{a} is the last event's {whole}")
    return a


# Checks on recordings


def chat_case(client, c):
    whole = of_completion(client.chat.completions.create(**chat_request(c)))
    c.check(whole)
    streamed = of_chunks(client.chat.completions.create(**chat_request(c), stream=True))
    expect(streamed.same(whole), True, f"stream {streamed} is the whole {whole}")
    with client.chat.completions.stream(**chat_request(c)) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        helped = of_completion(stream.get_final_completion())
    expect(helped.same(whole), True, f"the helper's {helped} is the whole {whole}")
    expect([(e.name, e.arguments) for e in done], [(t.name, t.arguments) for t in whole.calls], "arguments.done events")


def response_case(client, c):
    whole = of_response(client.responses.create(**response_request(c)))
    c.check(whole)
    streamed = of_events(client.responses.create(**response_request(c), stream=True))
    expect(streamed.same(whole), True, f"stream {streamed} is the whole {whole}")
    with client.responses.stream(**response_request(c)) as stream:
        for _ in stream:
            pass
        helped = of_response(stream.get_final_response())
    expect(helped.same(whole), True, f"the helper's {helped} is the whole {whole}")


def chat_truncated(client):
    """A call whose arguments end in the middle loses nothing of what there is."""
    full = of_completion(client.chat.completions.create(**chat_request(case("hermes", "parallel"))))
    request = {**chat_request(case("hermes", "parallel")), "max_completion_tokens": 150}
    whole, streamed = of_completion(client.chat.completions.create(**request)), of_chunks(client.chat.completions.create(**request, stream=True))
    truncated(whole, streamed, full)


def response_truncated(client):
    full = of_response(client.responses.create(**response_request(case("hermes", "parallel"))))
    request = {**response_request(case("hermes", "parallel")), "max_output_tokens": 150}
    whole, streamed = of_response(client.responses.create(**request)), of_events(client.responses.create(**request, stream=True))
    truncated(whole, streamed, full)


def truncated(whole, streamed, full):
    expect(streamed.same(whole), True, f"stream {streamed} is the whole {whole}")
    expect((whole.finish, whole.content), ("length", full.content), "finish and content")
    n = len(whole.calls)
    expect(n == 2, True, f"two calls begun in {whole}")
    expect(whole.calls[0].arguments, full.calls[0].arguments, "the complete call")
    rest = whole.calls[1].arguments.rstrip("\ufffd")  # half a character at the end
    expect(0 < len(rest) < len(full.calls[1].arguments) and full.calls[1].arguments.startswith(rest), True, f"beginning of the other: {rest}")


def chat_tool_turn(client, model):
    """The result of a tool goes back; here it says what is played next."""
    messages = [{"role": "user", "content": "play:call"}]
    first = client.chat.completions.create(model=model, messages=messages, tools=TOOLS).choices[0].message
    messages.append(first)
    messages += [{"role": "tool", "tool_call_id": t.id, "content": "22 °C; play:text"} for t in first.tool_calls]
    case(model, "text").check(of_completion(client.chat.completions.create(model=model, messages=messages, tools=TOOLS)))


def response_tool_turn(client, model):
    turn = [{"role": "user", "content": "play:call"}]
    first = client.responses.create(model=model, input=turn, tools=flat(TOOLS))
    turn += first.output
    turn += [{"type": "function_call_output", "call_id": i.call_id, "output": "22 °C; play:text"} for i in first.output if i.type == "function_call"]
    case(model, "text").check(of_response(client.responses.create(model=model, input=turn, tools=flat(TOOLS))))


def parsed_recording(client):
    messages = [{"role": "user", "content": "play:object"}]
    want = Weather(city="Paris", days=3, sunny=True, unit="C")
    expect(client.chat.completions.parse(model="hermes", messages=messages, response_format=Weather).choices[0].message.parsed, want, "parse")
    with client.chat.completions.stream(model="hermes", messages=messages, response_format=Weather) as stream:
        expect(stream.get_final_completion().choices[0].message.parsed, want, "stream")
    expect(client.responses.parse(model="hermes", input="play:object", text_format=Weather).output_parsed, want, "responses.parse")
    with client.responses.stream(model="hermes", input="play:object", text_format=Weather) as stream:
        for _ in stream:
            pass
        expect(stream.get_final_response().output_parsed, want, "responses.stream")


def parsed_tool(client):
    class get_weather(BaseModel):
        city: str
        days: int

    tools = [openai.pydantic_function_tool(get_weather)]
    done = client.chat.completions.parse(model="hermes", messages=[{"role": "user", "content": "play:call"}], tools=tools)
    expect(done.choices[0].message.tool_calls[0].function.parsed_arguments, get_weather(city="Köln", days=2), "arguments")


def parsed_response_tool(client):
    class get_weather(BaseModel):
        city: str
        days: int

    done = client.responses.parse(model="hermes", input="play:call", tools=[openai.pydantic_responses_function_tool(get_weather)])
    expect(done.output[0].parsed_arguments, get_weather(city="Köln", days=2), "arguments")


def parsed_too_short(client):
    """What the limit cut off is the client's LengthFinishReasonError, not broken JSON."""
    ask = {"model": "hermes", "messages": [{"role": "user", "content": "play:object"}], "response_format": Weather, "max_tokens": 4}
    raises(openai.LengthFinishReasonError, lambda: client.chat.completions.parse(**ask))
    with client.chat.completions.stream(**ask) as stream:
        raises(openai.LengthFinishReasonError, stream.get_final_completion)


def forms_of_content(client):
    want = case("hermes", "text")
    parts = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": [{"type": "text", "text": "play:text"}]}]
    want.check(of_completion(client.chat.completions.create(model="hermes", messages=parts)))
    items = [{"role": "user", "content": [{"type": "input_text", "text": "play:text"}]}]
    want.check(of_response(client.responses.create(model="hermes", instructions="Be brief.", input=items)))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    e = raises(openai.BadRequestError, lambda: client.chat.completions.create(model="hermes", messages=[{"role": "user", "content": [image]}]))
    expect("image_url" in e.message, True, e.message)


def response_details(client):
    r = client.responses.create(model="qwen3", input="play:text", include=["message.output_text.logprobs"], top_logprobs=2, metadata={"mill": "3"})
    thought, said = r.output
    expect((thought.type, said.type, r.metadata), ("reasoning", "message", {"mill": "3"}), "items and metadata")
    # The markup between thought and answer is tokens of the model too.
    tokens = "".join(t.token for t in said.content[0].logprobs)
    expect(tokens.endswith(r.output_text), True, f"tokens {tokens!r} of {r.output_text!r}")
    u = r.usage
    expect((u.total_tokens, 5 < u.output_tokens_details.reasoning_tokens < u.output_tokens), (u.input_tokens + u.output_tokens, True), f"usage {u}")


def details(client):
    """Choices, log-probabilities, stop strings and usage, whole and streamed."""
    request = {"model": "hermes", "messages": [{"role": "user", "content": "play:text"}]}
    text = case("hermes", "text").want["content"]
    whole = client.chat.completions.create(**request, n=2, temperature=1, logprobs=True, top_logprobs=2)
    expect([c.message.content for c in whole.choices], [text, text], "two choices")
    tokens = whole.choices[1].logprobs.content
    expect(b"".join(bytes(t.bytes) for t in tokens).decode(), text, "tokens of the log-probabilities")
    expect({len(t.top_logprobs) for t in tokens}, {2}, "alternatives")
    usage, content = None, ""
    for chunk in client.chat.completions.create(**request, n=2, temperature=1, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        content += "".join(t.token for c in chunk.choices if c.index == 0 and c.logprobs for t in c.logprobs.content)
    expect((usage.prompt_tokens, usage.completion_tokens), (whole.usage.prompt_tokens, whole.usage.completion_tokens), "usage")
    stopped = client.chat.completions.create(**request, stop=["noon"]).choices[0]
    expect((stopped.message.content, stopped.finish_reason), (text[: text.index("noon")], "stop"), "stop string")
    shown = client.chat.completions.create(model="qwen3", messages=request["messages"], extra_body={"include_reasoning": False})
    expect(of_completion(shown).reasoning, "", "reasoning that is not wanted")
    ids = {}
    for chunk in client.chat.completions.create(**{**chat_request(case("hermes", "parallel")), "n": 2, "temperature": 1}, stream=True):
        for choice in chunk.choices:
            ids.setdefault(choice.index, []).extend(t.id for t in choice.delta.tool_calls or [] if t.id)
    expect((len(ids[0]), len(ids[1]), len(set(ids[0] + ids[1]))), (3, 3, 6), f"ids of the calls of two choices {ids}")
    thought = client.chat.completions.create(model="qwen3", messages=request["messages"]).usage.completion_tokens_details.reasoning_tokens
    expect(thought > 5, True, f"{thought} tokens of reasoning")


def side_by_side(url):
    """All recordings at once over one client: no stream takes a piece of another."""

    async def collect(client, c):
        chunks = [chunk async for chunk in await client.chat.completions.create(**chat_request(c), stream=True)]
        c.check(of_chunks(chunks))

    async def every():
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, timeout=60) as client:
            await asyncio.gather(*(collect(client, c) for c in cases() for _ in range(3)))

    asyncio.run(every())


def completions_recorded(client):
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(model="hermes", prompt="play:markup", max_tokens=500, stream=True) if chunk.choices)
    expect(text, case("hermes", "markup").want["content"], "streamed completion")
    both = client.completions.create(model="hermes", prompt=["play:markup", "play:text"], max_tokens=500)
    expect([c.text for c in both.choices], [text, case("hermes", "text").want["content"]], "two prompts")


# Checks of failures


def broken_stream(client, name):
    """The stream was a success until it broke: the client raises behind the text."""
    text = ""

    def read():
        nonlocal text
        for chunk in client.chat.completions.create(model="hermes", messages=[{"role": "user", "content": f"play:{name}"}], stream=True):
            text += chunk.choices[0].delta.content or ""

    e = raises(openai.APIError, read)
    expect("This answer".startswith(text[:11]) and len(text) > 5, True, f"text before the failure: {text!r}")
    expect(bool(e.message and e.code and e.type), True, f"message, code and type of {e.body}")
    whole = lambda: client.chat.completions.create(model="hermes", messages=[{"role": "user", "content": f"play:{name}"}])
    expect(raises(openai.InternalServerError, whole).status_code, 500 if name == "broken" else 503, "status")


def broken_response(client):
    last = None

    def read():
        nonlocal last
        for event in client.responses.create(model="hermes", input="play:broken", stream=True):
            last = event

    try:
        read()
    except openai.APIError as e:
        expect(bool(e.message), True, "message")
    else:
        expect(last.type in ("response.failed", "error"), True, f"the last event is {last.type}")
    expect(raises(openai.InternalServerError, lambda: client.responses.create(model="hermes", input="play:broken")).status_code, 500, "status")


def refused(client):
    ask = [{"role": "user", "content": "play:refused"}]
    e = raises(openai.InternalServerError, lambda: client.chat.completions.create(model="hermes", messages=ask))
    expect((e.status_code, e.code, "retry-after" in e.response.headers), (503, "overloaded", True), "status, code and Retry-After")
    e = raises(openai.InternalServerError, lambda: client.responses.create(model="hermes", input="play:refused", stream=True))
    expect(e.status_code, 503, "status")


def errors(client, model):
    ask = [{"role": "user", "content": "play:text"}]

    def bad(param, **more):
        e = raises(openai.BadRequestError, lambda: client.chat.completions.create(**{"model": model, "messages": ask, **more}))
        expect((e.param, e.type, bool(e.message)), (param, "invalid_request_error", True), f"error {e.message}")

    bad("temperature", temperature=9)
    bad("messages", messages=[])
    bad("messages[0].role", messages=[{"role": "river", "content": "x"}])
    bad("tool_choice.function.name", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "no_such_tool"}})
    bad("tool_choice", tool_choice="required")
    e = raises(openai.NotFoundError, lambda: client.chat.completions.create(model="no-such-model", messages=ask))
    expect("no-such-model" in e.message, True, e.message)
    e = raises(openai.APIStatusError, lambda: client.chat.completions.create(model=model, messages=[{"role": "user", "content": TOO_LARGE}]))
    expect(e.status_code, 413, "status of a body that is too large")


def response_errors(client, model):
    def bad(param, **more):
        e = raises(openai.BadRequestError, lambda: client.responses.create(**{"model": model, "input": "play:text", **more}))
        expect((e.param, bool(e.message)), (param, True), f"error {e.message}")

    bad("temperature", temperature=9)
    bad("previous_response_id", previous_response_id="resp_1")
    bad("tool_choice", tools=flat(TOOLS), tool_choice={"type": "function", "name": "no_such_tool"})
    raises(openai.NotFoundError, lambda: client.responses.create(model="no-such-model", input="x"))
    raises(openai.NotFoundError, lambda: client.responses.retrieve("resp_1"))  # nothing is stored
    expect(raises(openai.APIStatusError, lambda: client.responses.create(model=model, input=TOO_LARGE)).status_code, 413, "status")


def no_embeddings(client):
    """An engine of recordings makes none."""
    e = raises(openai.BadRequestError, lambda: client.embeddings.create(model="hermes", input="the mill"))
    expect("embeddings" in e.message, True, e.message)


def no_connection():
    """Nothing listens on port 1."""
    raises(openai.APIConnectionError, lambda: connect("http://127.0.0.1:1").models.list())


# Checks on the built-in model, whose weights are random


def conversation(client):
    messages = [{"role": "system", "content": "You speak of rivers."}, {"role": "user", "content": "The sluice is shut and the mill stands still. " * 20}]
    cached = []
    for _ in range(3):
        text, usage, finish, chunks = "", None, None, 0
        stream = client.chat.completions.create(model=UP_MODEL, messages=messages, max_tokens=32, stream=True, stream_options={"include_usage": True})
        for chunk in stream:
            chunks += 1
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
            usage = chunk.usage or usage
        expect(bool(text) and finish in ("stop", "length") and chunks >= 3, True, f"{chunks} chunks, text {text!r}, finish {finish!r}")
        expect(1 <= usage.completion_tokens <= 32, True, f"usage {usage}")
        cached.append(usage.prompt_tokens_details.cached_tokens)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    expect(cached[1] > 0 and cached[2] >= cached[1], True, f"cached tokens by turn {cached}")


def completions_up(client):
    completion = client.completions.create(model=UP_MODEL, prompt=["one", "two"], max_tokens=8, n=2, temperature=1.0, seed=3, logprobs=2)
    expect(len(completion.choices), 4, "choices")
    expect(bool(completion.choices[0].logprobs.token_logprobs), True, "log-probabilities")


def embeddings_up(client):
    three = client.embeddings.create(model=UP_MODEL, input=["the mill", "the sluice", "the mill"])  # as base64
    vectors = [e.embedding for e in three.data]
    expect(vectors[0] == vectors[2] != vectors[1], True, "embeddings are those of their texts")
    expect(abs(sum(x * x for x in vectors[0]) - 1) < 1e-5, True, "an embedding is of length 1")
    numbers = client.embeddings.create(model=UP_MODEL, input="the mill", encoding_format="float").data[0].embedding
    expect(all(abs(a - b) < 1e-7 for a, b in zip(numbers, vectors[0], strict=True)), True, "base64 and numbers agree")
    expect(three.usage.prompt_tokens == three.usage.total_tokens > 0, True, f"usage {three.usage}")
    e = raises(openai.BadRequestError, lambda: client.embeddings.create(model=UP_MODEL, input="the mill", dimensions=8))
    expect(e.param, "dimensions", "param")


def whole_is_stream_up(client):
    chat = {"model": UP_MODEL, "messages": [{"role": "user", "content": "Tell me of the dam."}], "max_tokens": 24, "temperature": 0.8, "seed": 7, "tools": TOOLS}
    whole, streamed = of_completion(client.chat.completions.create(**chat)), of_chunks(client.chat.completions.create(**chat, stream=True))
    expect(streamed.same(whole), True, f"stream {streamed} is the whole {whole}")
    response = {"model": UP_MODEL, "input": "Tell me of the dam.", "max_output_tokens": 24, "temperature": 0, "tools": flat(TOOLS)}
    whole, streamed = of_response(client.responses.create(**response)), of_events(client.responses.create(**response, stream=True))
    expect(streamed.same(whole), True, f"response stream {streamed} is the whole {whole}")


def required_up(client):
    chat = {"model": UP_MODEL, "messages": [{"role": "user", "content": "What is the weather?"}], "tools": TOOLS, "max_tokens": 1500, "seed": 1, "temperature": 1}
    whole = of_completion(client.chat.completions.create(**chat, tool_choice="required"))
    valid_calls(whole.calls)
    expect((whole.finish, whole.content), ("tool_calls", ""), "finish and content")
    streamed = of_chunks(client.chat.completions.create(**chat, tool_choice="required", stream=True))
    expect(streamed.same(whole), True, f"stream {streamed} is the whole {whole}")
    one = of_completion(client.chat.completions.create(**chat, tool_choice="required", parallel_tool_calls=False))
    valid_calls(one.calls)
    expect(len(one.calls), 1, "calls, not parallel")
    named = of_completion(client.chat.completions.create(**chat, tool_choice={"type": "function", "function": {"name": "plan"}}))
    valid_calls(named.calls)
    expect([c.name for c in named.calls], ["plan"], "the named function")
    response = of_response(client.responses.create(model=UP_MODEL, input="What is the weather?", tools=flat(TOOLS), tool_choice="required", max_output_tokens=1500))
    valid_calls(response.calls)


def schema_up(client):
    ask = [{"role": "user", "content": "What is the weather?"}]
    got = client.chat.completions.parse(model=UP_MODEL, messages=ask, response_format=Weather, temperature=1, seed=5).choices[0].message.parsed
    expect(type(got), Weather, "type that was parsed")
    with client.chat.completions.stream(model=UP_MODEL, messages=ask, response_format=Weather, temperature=1, seed=5) as stream:
        expect(stream.get_final_completion().choices[0].message.parsed, got, "the stream's object")
    expect(type(client.responses.parse(model=UP_MODEL, input="What is the weather?", text_format=Weather).output_parsed), Weather, "type of the response")
    plain = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    text = client.chat.completions.create(model=UP_MODEL, messages=ask, response_format=plain).choices[0].message.content
    valid(json.loads(text), SCHEMA)
    bad = {"type": "json_schema", "json_schema": {"name": "odd", "schema": {"type": "integer", "multipleOf": 3}}}
    e = raises(openai.BadRequestError, lambda: client.chat.completions.create(model=UP_MODEL, messages=ask, response_format=bad))
    expect((e.param, "multipleOf" in e.message), ("response_format", True), f"keyword in {e.message}")


def models(client, at_least):
    listed = [m.id for m in client.models.list()]
    expect(len(listed) >= at_least, True, f"models {listed}")
    expect(client.models.retrieve(listed[0]).id, listed[0], "one model")
    raises(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))


def main(up_url, recorded_url):
    up, recorded = connect(up_url), connect(recorded_url)
    report = Report(f"openai {openai.__version__} (Python)")
    for c in cases():
        report.check(f"recorded chat {c.model}/{c.name}: whole, stream, helper", chat_case, recorded, c)
        report.check(f"recorded responses {c.model}/{c.name}: whole, stream, helper", response_case, recorded, c)
    report.check("recorded chat truncated in a call", chat_truncated, recorded)
    report.check("recorded responses truncated in a call", response_truncated, recorded)
    for model in ("hermes", "qwen3", "deepseek-r1", "gpt-oss", "llama3"):
        report.check(f"recorded chat tool result {model}", chat_tool_turn, recorded, model)
        report.check(f"recorded responses tool result {model}", response_tool_turn, recorded, model)
    report.check("recorded parse and stream into a type", parsed_recording, recorded)
    report.check("recorded pydantic_function_tool", parsed_tool, recorded)
    report.check("recorded pydantic_responses_function_tool", parsed_response_tool, recorded)
    report.check("recorded parse of an answer cut off: LengthFinishReasonError", parsed_too_short, recorded)
    report.check("recorded forms of content", forms_of_content, recorded)
    report.check("recorded n, logprobs, stop, usage", details, recorded)
    report.check("recorded details of responses", response_details, recorded)
    report.check("recorded streams side by side, asynchronous client", side_by_side, recorded_url)
    report.check("recorded completions", completions_recorded, recorded)
    report.check("recorded models", models, recorded, 10)
    report.check("recorded broken stream: APIError", broken_stream, recorded, "broken")
    report.check("recorded workers lost in a stream: APIError", broken_stream, recorded, "lost")
    report.check("recorded broken response", broken_response, recorded)
    report.check("recorded overloaded: InternalServerError 503", refused, recorded)
    report.check("recorded errors of chat", errors, recorded, "hermes")
    report.check("recorded errors of responses", response_errors, recorded, "hermes")
    report.check("recorded embeddings refused", no_embeddings, recorded)
    report.check("no server: APIConnectionError", no_connection)
    report.check("up conversation in three turns, cached", conversation, up)
    report.check("up completions", completions_up, up)
    report.check("up embeddings", embeddings_up, up)
    report.check("up stream is whole, with tools", whole_is_stream_up, up)
    report.check("up tool_choice required, one, named", required_up, up)
    report.check("up json_schema: parse, stream, refused keyword", schema_up, up)
    report.check("up errors of chat", errors, up, UP_MODEL)
    report.check("up errors of responses", response_errors, up, UP_MODEL)
    report.check("up models", models, up, 1)
    report.end()


main(sys.argv[1], sys.argv[2])

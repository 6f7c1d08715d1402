"""Holds the official anthropic package against Penstock.

    anthropic_client.py UP_URL RECORDED_URL

UP_URL is a running "penstock up", RECORDED_URL a running test/recorded. Prints a
line for each check and exits 1 if any failed."""

import asyncio
import json
import sys
from typing import Literal

import anthropic
from pydantic import BaseModel

from harness import SCHEMA, TOO_LARGE, TOOLS, Answer, Call, Report, case, cases, expect, raises, valid, valid_calls

UP_MODEL = "penstock-tiny"
FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


# PICTURE is 224 by 224 pixels, 64 tokens of the built-in model.
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAOAAAADgAQMAAAAg4/iiAAAABlBMVEUeWsj60jx50+a7AAAANElEQVR42u3LIQ4AMAgEQcr//0xNJUFRN2MuYUMEAOw5b6u75vQpiqIoiqIoiqL4NwLApgsuvAHgEFUWIQAAAABJRU5ErkJggg=="


def connect(url):
    return anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0, timeout=60)


class Weather(BaseModel):
    city: Literal["Paris", "Rome", "Köln"]
    sunny: bool


def own(tools):
    return [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in (t["function"] for t in tools)]


def request(c):
    want, r = c.want, {"model": c.model, "max_tokens": 1000, "messages": [{"role": "user", "content": c.prompt}]}
    if want.get("schema"):
        r["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
        return r
    r["tools"] = own(TOOLS)
    if choice := want.get("tool_choice"):
        r["tool_choice"] = {"type": "any"} if choice == "required" else {"type": "tool", "name": choice}
    if want.get("parallel") is False:
        r["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if want.get("effort") == "none":
        r["thinking"] = {"type": "disabled"}
    elif "reasoning" in want:
        r["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        r["max_tokens"] = 2000
    return r


def canonical(arguments):
    """Arguments are an object in a whole message and text in a stream."""
    return json.dumps(arguments, ensure_ascii=False)


def of_message(message):
    expect((message.type, message.role), ("message", "assistant"), "type and role")
    a = Answer(finish=FINISH[message.stop_reason])
    for block in message.content:
        match block.type:
            case "thinking":
                a.reasoning += block.thinking
            case "text":
                a.content += block.text
            case "tool_use":
                a.calls.append(Call(block.name, canonical(block.input), block.id))
            case other:
                raise AssertionError(f"a block of type {other}")
    return a


def of_events(stream):
    """Puts a streamed message together by hand; usage comes with it."""
    a, index, kind, text, usage, last = Answer(), -1, None, "", {}, None
    for event in stream:
        last = event.type
        match event.type:
            case "message_start":
                expect((event.message.content, event.message.stop_reason), ([], None), "the message at its start")
                usage["input_tokens"] = event.message.usage.input_tokens
            case "content_block_start":
                expect((kind, event.index), (None, index + 1), "blocks do not overlap")
                index, kind, text = event.index, event.content_block.type, ""
                if kind == "tool_use":
                    expect(event.content_block.input, {}, "input at the start")
                    a.calls.append(Call(event.content_block.name, "", event.content_block.id))
            case "content_block_delta":
                expect(event.index, index, "index of a delta")
                match event.delta.type:
                    case "text_delta":
                        a.content += event.delta.text
                    case "thinking_delta":
                        a.reasoning += event.delta.thinking
                    case "input_json_delta":
                        text += event.delta.partial_json
            case "content_block_stop":
                expect(event.index, index, "index of a stop")
                if kind == "tool_use":
                    try:
                        a.calls[-1].arguments = canonical(json.loads(text or "{}"))
                    except json.JSONDecodeError:
                        a.calls[-1].arguments = text  # cut off
                kind = None
            case "message_delta":
                expect(kind, None, "all blocks have stopped")
                a.finish = FINISH[event.delta.stop_reason]
                usage["output_tokens"] = event.usage.output_tokens
    expect(last, "message_stop", "last event")
    return a, usage


# Checks on recordings


def message_case(client, c):
    message = client.messages.create(**request(c))
    whole = of_message(message)
    c.check(whole)
    streamed, usage = of_events(client.messages.create(**request(c), stream=True))
    expect(streamed.same(whole), True, f"stream {streamed} is the whole {whole}")
    expect(usage, {"input_tokens": message.usage.input_tokens, "output_tokens": message.usage.output_tokens}, "usage of the stream")
    with client.messages.stream(**request(c)) as stream:
        helped = of_message(stream.get_final_message())
    expect(helped.same(whole), True, f"the helper's {helped} is the whole {whole}")


def truncated(client):
    """A call whose input ends in the middle loses nothing in the stream."""
    r = {**request(case("hermes", "parallel")), "max_tokens": 150}
    streamed, _ = of_events(client.messages.create(**r, stream=True))
    whole = of_message(client.messages.create(**r))
    expect((whole.finish, streamed.finish), ("length", "length"), "finish")
    expect((whole.content, whole.calls[0].arguments), (streamed.content, streamed.calls[0].arguments), "what is complete")
    rest = streamed.calls[1].arguments
    expect(rest.startswith('{"steps": ["open') and not rest.endswith("}"), True, f"the input that is not: {rest!r}")


def tool_turn(client, model):
    """The result of a tool goes back; here it says what is played next."""
    messages = [{"role": "user", "content": "play:call"}]
    first = client.messages.create(model=model, max_tokens=500, messages=messages, tools=own(TOOLS))
    messages.append({"role": "assistant", "content": first.content})
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": "22 °C; play:text"}]} for b in first.content if b.type == "tool_use"]
    messages.append({"role": "user", "content": results})
    case(model, "text").check(of_message(client.messages.create(model=model, max_tokens=500, messages=messages, tools=own(TOOLS))))


def tool_runner(client):
    """The client calls the tool and sends its result, which says what is played
    next. It asks for a thread, which Penstock does not keep, and goes on without."""
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """The weather of a city."""
        asked.append((city, days))
        return "22 °C; play:text"

    for streamed in (False, True):
        runner = client.beta.messages.tool_runner(
            model="hermes", max_tokens=500, messages=[{"role": "user", "content": "play:call"}], tools=[get_weather], stream=streamed
        )
        *_, last = (m.get_final_message() if streamed else m for m in runner)
        case("hermes", "text").check(of_message(last))
    expect(asked, [("Köln", 2)] * 2, "what the tool was asked")


def request_ids(client):
    ask = {"model": "hermes", "messages": [{"role": "user", "content": "play:text"}]}
    for answer in (client.messages.create(**ask, max_tokens=5), client.messages.count_tokens(**ask)):
        expect(bool(answer._request_id), True, "request-id of an answer")
    with client.messages.stream(**ask, max_tokens=5) as stream:
        expect(bool(stream.request_id), True, "request-id of a stream")
    e = raises(anthropic.NotFoundError, lambda: client.messages.create(**{**ask, "model": "no-such-model"}, max_tokens=5))
    expect((bool(e.request_id), e.body["request_id"]), (True, e.request_id), "request-id of an error")


def stop_sequence(client):
    text = case("hermes", "text").want["content"]
    m = client.messages.create(model="hermes", max_tokens=500, messages=[{"role": "user", "content": "play:text"}], stop_sequences=["noon"])
    expect((m.stop_reason, m.stop_sequence, m.content[0].text), ("stop_sequence", "noon", text[: text.index("noon")]), "stop sequence")


def prefilled(client):
    """The last message is the assistant's, and the answer goes on with it."""
    messages = [{"role": "user", "content": "play:text"}, {"role": "assistant", "content": "They said: "}]
    case("hermes", "text").check(of_message(client.messages.create(model="hermes", max_tokens=500, messages=messages)))


def side_by_side(url):
    """All recordings at once over one client: no stream takes a piece of another."""

    async def collect(client, c):
        streamed, _ = of_events([event async for event in await client.messages.create(**request(c), stream=True)])
        c.check(streamed)

    async def every():
        async with anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0, timeout=60) as client:
            await asyncio.gather(*(collect(client, c) for c in cases() for _ in range(3)))

    asyncio.run(every())


def parsed(client):
    got = client.messages.parse(model="hermes", max_tokens=500, messages=[{"role": "user", "content": "play:object"}], output_format=dict)
    expect(got.parsed_output["city"], "Paris", "parsed output")


def counted(client, model, text):
    r = {"model": model, "system": "You speak of rivers.", "messages": [{"role": "user", "content": text}], "tools": own(TOOLS)}
    count = client.messages.count_tokens(**r).input_tokens
    usage = client.messages.create(**r, max_tokens=2).usage
    expect(count, usage.input_tokens + usage.cache_read_input_tokens, f"tokens of {usage}")


# Checks of failures


def broken_stream(client):
    text = ""

    def read():
        nonlocal text
        with client.messages.stream(model="hermes", max_tokens=500, messages=[{"role": "user", "content": "play:broken"}]) as stream:
            for piece in stream.text_stream:
                text += piece

    e = raises(anthropic.APIStatusError, read)
    expect(e.type, "api_error", f"type of {e.body}")
    expect("This answer".startswith(text[:11]) and len(text) > 5, True, f"text before the failure: {text!r}")
    ask = lambda: client.messages.create(model="hermes", max_tokens=500, messages=[{"role": "user", "content": "play:broken"}])
    expect(raises(anthropic.InternalServerError, ask).type, "api_error", "type")


def refused(client):
    for streamed in (False, True):
        ask = lambda: client.messages.create(model="hermes", max_tokens=500, messages=[{"role": "user", "content": "play:refused"}], stream=streamed)
        try:
            ask()
        except (anthropic.ServiceUnavailableError, anthropic.OverloadedError) as e:
            expect(e.type, "overloaded_error", "type")
        else:
            raise AssertionError("no error was raised")


def errors(client, model):
    ask = [{"role": "user", "content": "play:text"}]

    def bad(word, **more):
        e = raises(anthropic.BadRequestError, lambda: client.messages.create(**{"model": model, "max_tokens": 10, "messages": ask, **more}))
        expect((e.type, word in e.message), ("invalid_request_error", True), f"error {e.message}")

    bad("temperature", extra_body={"temperature": 9})  # no longer among the client's own
    bad("messages", messages=[])
    bad("max_tokens", max_tokens=0)
    bad("tool_choice", tools=own(TOOLS), tool_choice={"type": "tool", "name": "no_such_tool"})
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    bad("messages[0].content[0]", messages=[{"role": "user", "content": [image]}])  # cut off, or for a model that does not see
    if model == "penstock-tiny":
        image["source"]["data"] = PICTURE
        seen = client.messages.create(model=model, max_tokens=4, messages=[{"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]}])
        expect(seen.usage.input_tokens + (seen.usage.cache_read_input_tokens or 0) > 64, True, "tokens of a picture")
    e = raises(anthropic.NotFoundError, lambda: client.messages.create(model="no-such-model", max_tokens=10, messages=ask))
    expect((e.type, "no-such-model" in e.message), ("not_found_error", True), "unknown model")
    raises(anthropic.NotFoundError, lambda: client.messages.count_tokens(model="no-such-model", messages=ask))
    e = raises(anthropic.ContentTooLargeError, lambda: client.messages.create(model=model, max_tokens=10, messages=[{"role": "user", "content": TOO_LARGE}]))
    expect(e.type, "request_too_large", "type")


def no_connection():
    """Nothing listens on port 1."""
    raises(anthropic.APIConnectionError, lambda: connect("http://127.0.0.1:1").messages.create(model="x", max_tokens=1, messages=[{"role": "user", "content": "x"}]))


# Checks on the built-in model, whose weights are random


def conversation(client):
    messages, cached = [{"role": "user", "content": "The sluice is shut and the mill stands still. " * 20}], []
    for _ in range(3):
        with client.messages.stream(model=UP_MODEL, max_tokens=32, system="You speak of rivers.", messages=messages) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        expect(bool(text) and text == message.content[0].text, True, f"text {text!r}")
        expect(1 <= message.usage.output_tokens <= 32 and message.stop_reason in ("end_turn", "max_tokens"), True, f"{message}")
        cached.append(message.usage.cache_read_input_tokens)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    expect(cached[1] > 0 and cached[2] >= cached[1], True, f"cached tokens by turn {cached}")


def whole_is_stream_up(client):
    r = {"model": UP_MODEL, "messages": [{"role": "user", "content": "Tell me of the dam."}], "max_tokens": 24, "tools": own(TOOLS), "extra_body": {"temperature": 0}}
    whole, (streamed, _) = of_message(client.messages.create(**r)), of_events(client.messages.create(**r, stream=True))
    expect(streamed.same(whole), True, f"stream {streamed} is the whole {whole}")


def required_up(client):
    r = {"model": UP_MODEL, "messages": [{"role": "user", "content": "What is the weather?"}], "tools": own(TOOLS), "max_tokens": 1500}
    whole = of_message(client.messages.create(**r, tool_choice={"type": "any"}))
    valid_calls(whole.calls)
    expect(whole.finish, "tool_calls", "finish")
    streamed, _ = of_events(client.messages.create(**r, tool_choice={"type": "any", "disable_parallel_tool_use": True}, stream=True))
    valid_calls(streamed.calls)
    expect(len(streamed.calls), 1, "calls, not parallel")
    named = of_message(client.messages.create(**r, tool_choice={"type": "tool", "name": "plan"}))
    valid_calls(named.calls)
    expect([c.name for c in named.calls], ["plan"], "the named function")


def schema_up(client):
    ask = {"model": UP_MODEL, "max_tokens": 500, "messages": [{"role": "user", "content": "What is the weather?"}]}
    expect(type(client.messages.parse(**ask, output_format=Weather).parsed_output), Weather, "type that was parsed")
    m = client.messages.create(**ask, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    valid(json.loads(m.content[0].text), SCHEMA)


def main(up_url, recorded_url):
    up, recorded = connect(up_url), connect(recorded_url)
    report = Report(f"anthropic {anthropic.__version__} (Python)")
    for c in cases():
        report.check(f"recorded messages {c.model}/{c.name}: whole, stream, helper", message_case, recorded, c)
    report.check("recorded truncated in a call", truncated, recorded)
    for model in ("hermes", "qwen3", "deepseek-r1", "gpt-oss", "llama3"):
        report.check(f"recorded tool result {model}", tool_turn, recorded, model)
    report.check("recorded tool_runner: whole, stream", tool_runner, recorded)
    report.check("recorded request ids", request_ids, recorded)
    report.check("recorded stop sequence", stop_sequence, recorded)
    report.check("recorded prefill", prefilled, recorded)
    report.check("recorded streams side by side, asynchronous client", side_by_side, recorded_url)
    report.check("recorded parse", parsed, recorded)
    report.check("recorded count_tokens", counted, recorded, "hermes", "play:text")
    report.check("recorded broken stream: APIStatusError api_error", broken_stream, recorded)
    report.check("recorded overloaded", refused, recorded)
    report.check("recorded errors", errors, recorded, "hermes")
    report.check("no server: APIConnectionError", no_connection)
    report.check("up conversation in three turns, cached", conversation, up)
    report.check("up stream is whole, with tools", whole_is_stream_up, up)
    report.check("up tool_choice any, one, named", required_up, up)
    report.check("up json_schema", schema_up, up)
    report.check("up count_tokens", counted, up, UP_MODEL, "How deep is the lake?")
    report.check("up errors", errors, up, UP_MODEL)
    report.end()


main(sys.argv[1], sys.argv[2])

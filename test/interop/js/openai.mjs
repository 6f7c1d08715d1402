// Holds the official openai package against Penstock.
//
//     node openai.mjs UP_URL RECORDED_URL
//
// UP_URL is a running "penstock up", RECORDED_URL a running test/recorded, and the
// environment's PENSTOCK_RECORDINGS what that plays. Prints a line for each check
// and exits 1 if any failed.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { SCHEMA, TOO_LARGE, TOOLS, Report, caseOf, cases, empty, heard, raises, same, valid, validCalls } from "./harness.mjs";

const UP_MODEL = "penstock-tiny";
const connect = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0, timeout: 60_000 });

// Requests

const jsonSchema = { name: "weather", schema: SCHEMA, strict: true };

function chatRequest({ model, prompt, want }) {
  const r = { model, messages: [{ role: "user", content: prompt }] };
  if (want.schema) return { ...r, response_format: { type: "json_schema", json_schema: jsonSchema } };
  r.tools = TOOLS;
  const choice = want.tool_choice;
  if (choice) r.tool_choice = choice === "required" ? choice : { type: "function", function: { name: choice } };
  if ("parallel" in want) r.parallel_tool_calls = want.parallel;
  if ("effort" in want) r.reasoning_effort = want.effort;
  return r;
}

const flat = (tools) => tools.map((t) => ({ type: "function", ...t.function }));

function responseRequest({ model, prompt, want }) {
  const r = { model, input: prompt };
  if (want.schema) return { ...r, text: { format: { type: "json_schema", ...jsonSchema } } };
  r.tools = flat(TOOLS);
  const choice = want.tool_choice;
  if (choice) r.tool_choice = choice === "required" ? choice : { type: "function", name: choice };
  if ("parallel" in want) r.parallel_tool_calls = want.parallel;
  if ("effort" in want) r.reasoning = { effort: want.effort };
  return r;
}

// Answers

function ofCompletion({ choices: [{ message, finish_reason }] }) {
  return {
    reasoning: message.reasoning_content ?? "",
    content: message.content ?? "",
    calls: (message.tool_calls ?? []).map((t) => ({ name: t.function.name, arguments: t.function.arguments, id: t.id })),
    finish: finish_reason,
  };
}

async function ofChunks(stream) {
  const a = empty();
  for await (const chunk of await stream) {
    for (const { delta, finish_reason } of chunk.choices) {
      assert.equal(a.finish, null, "nothing after the finish");
      a.reasoning += delta.reasoning_content ?? "";
      a.content += delta.content ?? "";
      for (const t of delta.tool_calls ?? []) {
        if (t.index === a.calls.length) a.calls.push({ name: t.function.name, arguments: "", id: t.id });
        assert.equal(t.index, a.calls.length - 1, "a delta continues the last call");
        a.calls[t.index].arguments += t.function.arguments ?? "";
      }
      a.finish = finish_reason;
    }
  }
  return a;
}

function ofResponse(response) {
  const a = empty();
  for (const item of response.output) {
    if (item.type === "reasoning") a.reasoning += (item.content ?? []).map((p) => p.text).join("");
    else if (item.type === "message") a.content += item.content.map((p) => p.text).join("");
    else if (item.type === "function_call") a.calls.push({ name: item.name, arguments: item.arguments, id: item.call_id });
    else assert.fail(`an item of type ${item.type}`);
  }
  if (response.status === "incomplete") {
    assert.equal(response.incomplete_details.reason, "max_output_tokens");
    a.finish = "length";
  } else {
    assert.equal(response.status, "completed");
    a.finish = a.calls.length ? "tool_calls" : "stop";
  }
  return a;
}

async function ofEvents(stream) {
  const a = empty();
  let last;
  let number = 0;
  for await (const event of await stream) {
    assert.equal(event.sequence_number, number++);
    last = event;
    if (event.type === "response.output_item.added" && event.item.type === "function_call") {
      a.calls.push({ name: event.item.name, arguments: "", id: event.item.call_id });
    } else if (event.type === "response.output_text.delta") a.content += event.delta;
    else if (event.type === "response.reasoning_text.delta") a.reasoning += event.delta;
    else if (event.type === "response.function_call_arguments.delta") a.calls.at(-1).arguments += event.delta;
  }
  const whole = ofResponse(last.response);
  a.finish = whole.finish;
  assert.deepEqual(a, whole, "the deltas make the last event's response");
  return a;
}

// Checks on recordings

async function chatCase(client, c) {
  const whole = ofCompletion(await client.chat.completions.create(chatRequest(c)));
  heard(c, whole);
  same(await ofChunks(client.chat.completions.create({ ...chatRequest(c), stream: true })), whole, "stream");
  const stream = client.chat.completions.stream(chatRequest(c));
  const done = [];
  stream.on("tool_calls.function.arguments.done", ({ name, arguments: args }) => done.push({ name, args }));
  // The helper adds up the fields that OpenAI has; of reasoning it keeps the last delta.
  same({ ...ofCompletion(await stream.finalChatCompletion()), reasoning: whole.reasoning }, whole, "helper");
  assert.deepEqual(done, whole.calls.map(({ name, arguments: args }) => ({ name, args })), "arguments.done events");
}

async function responseCase(client, c) {
  const whole = ofResponse(await client.responses.create(responseRequest(c)));
  heard(c, whole);
  same(await ofEvents(client.responses.create({ ...responseRequest(c), stream: true })), whole, "stream");
  same(ofResponse(await client.responses.stream(responseRequest(c)).finalResponse()), whole, "helper");
}

async function truncated(client) {
  const chat = { ...chatRequest(caseOf("hermes", "parallel")), max_completion_tokens: 150 };
  const whole = ofCompletion(await client.chat.completions.create(chat));
  same(await ofChunks(client.chat.completions.create({ ...chat, stream: true })), whole, "stream");
  assert.deepEqual([whole.finish, whole.calls.length], ["length", 2]);
  assert.match(whole.calls[1].arguments, /^\{"steps": \["open.*[^}]$/);
  const response = { ...responseRequest(caseOf("hermes", "parallel")), max_output_tokens: 150 };
  same(ofResponse(await client.responses.create(response)), whole, "response");
  same(await ofEvents(client.responses.create({ ...response, stream: true })), whole, "streamed response");
}

// The runner calls the functions and sends their results back; what the first one
// returns says what is played next.
async function ranTools(client, model) {
  const called = [];
  const tools = TOOLS.map((t) => ({
    ...t,
    function: { ...t.function, parse: JSON.parse, function: (args) => (called.push([t.function.name, args]), "22 °C; play:text") },
  }));
  const request = { model, messages: [{ role: "user", content: "play:call" }], tools };
  const text = caseOf(model, "text").want.content;
  const want = caseOf(model, "call").want.calls.map((c) => [c.name, c.arguments]);
  assert.equal(await client.chat.completions.runTools(request).finalContent(), text);
  assert.deepEqual(called.splice(0), want);
  assert.equal(await client.chat.completions.runTools({ ...request, stream: true }).finalContent(), text);
  assert.deepEqual(called, want);
}

async function responseToolTurn(client, model) {
  const input = [{ role: "user", content: "play:call" }];
  const first = await client.responses.create({ model, input, tools: flat(TOOLS) });
  input.push(...first.output);
  for (const item of first.output.filter((i) => i.type === "function_call")) {
    input.push({ type: "function_call_output", call_id: item.call_id, output: "22 °C; play:text" });
  }
  heard(caseOf(model, "text"), ofResponse(await client.responses.create({ model, input, tools: flat(TOOLS) })));
}

async function parsed(client) {
  const want = JSON.parse(caseOf("hermes", "object").want.content);
  const chat = chatRequest(caseOf("hermes", "object"));
  assert.deepEqual(JSON.parse((await client.chat.completions.parse(chat)).choices[0].message.content), want);
  const response = responseRequest(caseOf("hermes", "object"));
  assert.deepEqual((await client.responses.parse(response)).output_text, caseOf("hermes", "object").want.content);
}

async function completions(client) {
  let text = "";
  for await (const chunk of await client.completions.create({ model: "hermes", prompt: "play:markup", max_tokens: 500, stream: true })) {
    text += chunk.choices[0]?.text ?? "";
  }
  assert.equal(text, caseOf("hermes", "markup").want.content);
  const both = await client.completions.create({ model: "hermes", prompt: ["play:markup", "play:text"], max_tokens: 500 });
  assert.deepEqual(both.choices.map((c) => c.text), [text, caseOf("hermes", "text").want.content]);
}

// Checks of failures

async function brokenStream(client, name, status) {
  let text = "";
  const messages = [{ role: "user", content: `play:${name}` }];
  const e = await raises(OpenAI.APIError, async () => {
    for await (const chunk of await client.chat.completions.create({ model: "hermes", messages, stream: true })) text += chunk.choices[0].delta.content ?? "";
  });
  assert.ok(text.length > 5 && "This answer".startsWith(text.slice(0, 11)), `text before the failure: ${text}`);
  assert.ok(e.code && e.type && e.error.message, "code, type and message");
  const whole = await raises(OpenAI.InternalServerError, () => client.chat.completions.create({ model: "hermes", messages }));
  assert.equal(whole.status, status);
}

async function brokenResponse(client) {
  const stream = client.responses.stream({ model: "hermes", input: "play:broken" });
  await assert.rejects(async () => {
    const response = await stream.finalResponse();
    assert.notEqual(response.status, "failed", "response.failed");
  });
  assert.equal((await raises(OpenAI.InternalServerError, () => client.responses.create({ model: "hermes", input: "play:broken" }))).status, 500);
}

async function refused(client) {
  const messages = [{ role: "user", content: "play:refused" }];
  const e = await raises(OpenAI.InternalServerError, () => client.chat.completions.create({ model: "hermes", messages }));
  assert.deepEqual([e.status, e.code, e.headers.has("retry-after")], [503, "overloaded", true]);
}

async function errors(client, model) {
  const messages = [{ role: "user", content: "play:text" }];
  const bad = async (param, more) => {
    const e = await raises(OpenAI.BadRequestError, () => client.chat.completions.create({ model, messages, ...more }));
    assert.deepEqual([e.param, e.type], [param, "invalid_request_error"], e.message);
  };
  await bad("temperature", { temperature: 9 });
  await bad("messages", { messages: [] });
  await bad("tool_choice.function.name", { tools: TOOLS, tool_choice: { type: "function", function: { name: "no_such_tool" } } });
  await bad("no_such_field", { no_such_field: 1 });
  const e = await raises(OpenAI.NotFoundError, () => client.chat.completions.create({ model: "no-such-model", messages }));
  assert.match(e.message, /no-such-model/);
  await raises(OpenAI.NotFoundError, () => client.responses.create({ model: "no-such-model", input: "x" }));
  const param = await raises(OpenAI.BadRequestError, () => client.responses.create({ model, input: "x", previous_response_id: "resp_1" }));
  assert.equal(param.param, "previous_response_id");
  const large = await raises(OpenAI.APIError, () => client.chat.completions.create({ model, messages: [{ role: "user", content: TOO_LARGE }] }));
  assert.equal(large.status, 413);
}

// Nothing listens on port 1.
const noConnection = () => raises(OpenAI.APIConnectionError, () => connect("http://127.0.0.1:1").models.list());

async function aborted(client) {
  const stream = await client.chat.completions.create({ model: "hermes", messages: [{ role: "user", content: "play:parallel" }], stream: true });
  for await (const _ of stream) break; // closes the connection
  assert.ok(stream.controller.signal.aborted);
  heard(caseOf("hermes", "text"), ofCompletion(await client.chat.completions.create(chatRequest(caseOf("hermes", "text")))));
}

// Checks on the built-in model, whose weights are random

async function conversation(client) {
  const messages = [{ role: "user", content: "The gate opens, the water falls, and the wheel turns. ".repeat(20) }];
  const cached = [];
  for (let turn = 0; turn < 3; turn++) {
    const stream = client.chat.completions.stream({ model: UP_MODEL, messages, max_tokens: 32, stream_options: { include_usage: true } });
    const { choices, usage } = await stream.finalChatCompletion();
    assert.ok(choices[0].message.content && usage.completion_tokens <= 32);
    cached.push(usage.prompt_tokens_details.cached_tokens);
    messages.push({ role: "assistant", content: choices[0].message.content }, { role: "user", content: "Go on." });
  }
  assert.ok(cached[1] > 0 && cached[2] >= cached[1], `cached tokens by turn ${cached}`);
}

async function embeddings(client) {
  const three = await client.embeddings.create({ model: UP_MODEL, input: ["the mill", "the sluice", "the mill"] });
  const [a, b, c] = three.data.map((e) => e.embedding);
  assert.deepEqual(a, c);
  assert.notDeepEqual(a, b);
  const e = await raises(OpenAI.BadRequestError, () => client.embeddings.create({ model: UP_MODEL, input: "x", dimensions: 8 }));
  assert.equal(e.param, "dimensions");
}

async function wholeIsStream(client) {
  const chat = { model: UP_MODEL, messages: [{ role: "user", content: "Tell me of the dam." }], max_tokens: 24, temperature: 0.8, seed: 7, tools: TOOLS };
  const whole = ofCompletion(await client.chat.completions.create(chat));
  same(await ofChunks(client.chat.completions.create({ ...chat, stream: true })), whole, "stream");
  const response = { model: UP_MODEL, input: "Tell me of the dam.", max_output_tokens: 24, temperature: 0 };
  same(await ofEvents(client.responses.create({ ...response, stream: true })), ofResponse(await client.responses.create(response)), "response");
}

async function required(client) {
  const chat = { model: UP_MODEL, messages: [{ role: "user", content: "What is the weather?" }], tools: TOOLS, max_tokens: 1500, seed: 2 };
  const stream = client.chat.completions.stream({ ...chat, tool_choice: "required" });
  const several = ofCompletion(await stream.finalChatCompletion());
  validCalls(several.calls);
  assert.equal(several.finish, "tool_calls");
  const named = ofCompletion(await client.chat.completions.create({ ...chat, tool_choice: { type: "function", function: { name: "get_weather" } } }));
  validCalls(named.calls);
  assert.deepEqual(named.calls.map((c) => c.name), ["get_weather"]);
  const response = ofResponse(await client.responses.stream({ model: UP_MODEL, input: "The weather?", tools: flat(TOOLS), tool_choice: "required", max_output_tokens: 1500 }).finalResponse());
  validCalls(response.calls);
}

async function schema(client) {
  const chat = { model: UP_MODEL, messages: [{ role: "user", content: "What is the weather?" }], response_format: { type: "json_schema", json_schema: jsonSchema } };
  valid(JSON.parse(ofCompletion(await client.chat.completions.create(chat)).content), SCHEMA);
  const text = { format: { type: "json_schema", ...jsonSchema } };
  valid(JSON.parse((await client.responses.create({ model: UP_MODEL, input: "What is the weather?", text })).output_text), SCHEMA);
}

async function models(client, atLeast) {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.ok(ids.length >= atLeast, `models ${ids}`);
}

const [up, recorded] = process.argv.slice(2).map(connect);
const report = new Report();
for (const c of cases()) {
  await report.check(`recorded chat ${c.model}/${c.name}: whole, stream, helper`, chatCase, recorded, c);
  await report.check(`recorded responses ${c.model}/${c.name}: whole, stream, helper`, responseCase, recorded, c);
}
await report.check("recorded truncated in a call", truncated, recorded);
for (const model of ["hermes", "qwen3", "deepseek-r1", "gpt-oss", "llama3"]) {
  await report.check(`recorded runTools ${model}: whole, stream`, ranTools, recorded, model);
  await report.check(`recorded responses tool result ${model}`, responseToolTurn, recorded, model);
}
await report.check("recorded parse", parsed, recorded);
await report.check("recorded completions", completions, recorded);
await report.check("recorded models", models, recorded, 10);
await report.check("recorded broken stream: APIError", brokenStream, recorded, "broken", 500);
await report.check("recorded workers lost in a stream: APIError", brokenStream, recorded, "lost", 503);
await report.check("recorded broken response", brokenResponse, recorded);
await report.check("recorded overloaded: InternalServerError 503", refused, recorded);
await report.check("recorded stream left early", aborted, recorded);
await report.check("recorded errors", errors, recorded, "hermes");
await report.check("no server: APIConnectionError", noConnection);
await report.check("up conversation in three turns, cached", conversation, up);
await report.check("up embeddings", embeddings, up);
await report.check("up stream is whole, with tools", wholeIsStream, up);
await report.check("up tool_choice required, named", required, up);
await report.check("up json_schema", schema, up);
await report.check("up errors", errors, up, UP_MODEL);
await report.check("up models", models, up, 1);
report.end(`openai ${(await import("openai/version")).VERSION} (JavaScript)`);

// What the checks of the JavaScript client work with: the recordings and what is
// to be made of them, answers in one form, and the report. The same as
// ../python/harness.py.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

export const recordings = process.env.PENSTOCK_RECORDINGS;
const json = (...name) => JSON.parse(readFileSync(join(recordings, ...name), "utf8"));

export const TOOLS = json("tools.json");
export const SCHEMA = json("schema.json");
// A body above what both servers take.
export const TOO_LARGE = "water ".repeat(200_000);

// An answer is {reasoning, content, calls: [{name, arguments, id}], finish}.
export const empty = () => ({ reasoning: "", content: "", calls: [], finish: null });

// same asserts that two answers say the same. Ids differ: each request has its own.
export function same(got, want, what) {
  const plain = (a) => ({ ...a, calls: a.calls.map(({ name, arguments: args }) => ({ name, args })) });
  assert.deepEqual(plain(got), plain(want), what);
}

// cases returns all recordings that are heard to their end.
export function cases() {
  const found = [];
  for (const model of readdirSync(recordings, { withFileTypes: true }).filter((d) => d.isDirectory()).map((d) => d.name).sort()) {
    for (const file of readdirSync(join(recordings, model)).filter((f) => f.endsWith(".json")).sort()) {
      const want = json(model, file);
      const name = file.slice(0, -".json".length);
      if ("finish" in want) found.push({ model, name, want, prompt: `Please play:${name}` });
    }
  }
  return found;
}

export const caseOf = (model, name) => cases().find((c) => c.model === model && c.name === name);

// heard asserts that an answer is what stands beside the recording.
export function heard(c, got) {
  const { reasoning = "", content = "", calls = [], finish } = c.want;
  assert.deepEqual(
    { ...got, calls: got.calls.map((g) => ({ name: g.name, arguments: JSON.parse(g.arguments) })) },
    { reasoning, content, calls: calls.map(({ name, arguments: args }) => ({ name, arguments: args })), finish },
  );
  calls.forEach((w, i) => w.id && assert.equal(got.calls[i].id, w.id));
  assert.equal(new Set(got.calls.map((g) => g.id)).size, calls.length, "every call has an id of its own");
}

// raises returns what f throws, which is of exactly this kind.
export async function raises(kind, f) {
  try {
    await f();
  } catch (e) {
    assert.equal(e.constructor, kind, `thrown: ${e}`);
    return e;
  }
  assert.fail(`no ${kind.name} was thrown`);
}

// valid asserts that a value keeps to a schema of those beside the recordings.
export function valid(value, schema) {
  if (schema.enum) return assert.ok(schema.enum.includes(value), `${value} is one of ${schema.enum}`);
  switch (schema.type) {
    case "object":
      assert.equal(Object.prototype.toString.call(value), "[object Object]");
      for (const name of schema.required ?? []) assert.ok(name in value, `${name} is there`);
      for (const [name, member] of Object.entries(value)) {
        assert.ok(name in schema.properties, `${name} is known`);
        valid(member, schema.properties[name]);
      }
      return;
    case "array":
      assert.ok(Array.isArray(value) && value.length <= schema.maxItems);
      return value.forEach((v) => valid(v, schema.items));
    case "string":
      return assert.ok(typeof value === "string" && [...value].length <= schema.maxLength);
    case "integer":
      return assert.ok(Number.isInteger(value) && value >= schema.minimum && value <= schema.maximum);
    default:
      return assert.equal(typeof value, schema.type);
  }
}

export function validCalls(calls) {
  assert.notEqual(calls.length, 0, "there are calls");
  for (const call of calls) valid(JSON.parse(call.arguments), TOOLS.find((t) => t.function.name === call.name).function.parameters);
}

export { Report } from "./report.mjs";

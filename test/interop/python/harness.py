"""What the scripts of all Python clients share: the recordings and what is to be
made of them, answers in one form whatever API they came through, and the report."""

import json
import pathlib
import sys
import traceback
from dataclasses import dataclass, field

RECORDINGS = pathlib.Path(__file__).parent.parent / "recordings"
TOOLS = json.loads((RECORDINGS / "tools.json").read_text())
SCHEMA = json.loads((RECORDINGS / "schema.json").read_text())

# A body above what both servers take.
TOO_LARGE = "water " * 200_000


@dataclass
class Call:
    name: str
    arguments: str  # as the client got them
    id: str = ""


@dataclass
class Answer:
    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None  # stop, length or tool_calls

    def same(self, other):
        """Whether the two say the same. Ids differ: each request has its own."""
        mine, others = [(c.name, c.arguments) for c in self.calls], [(c.name, c.arguments) for c in other.calls]
        return (self.reasoning, self.content, mine, self.finish) == (other.reasoning, other.content, others, other.finish)


@dataclass
class Case:
    model: str
    name: str
    want: dict

    @property
    def prompt(self):
        return f"Please play:{self.name}"

    def check(self, got):
        """Compares an answer to what stands beside the recording."""
        for part in ("reasoning", "content", "finish"):
            expect(getattr(got, part), self.want.get(part, ""), part)
        want = self.want.get("calls", [])
        expect([(c.name, json.loads(c.arguments)) for c in got.calls], [(c["name"], c["arguments"]) for c in want], "calls")
        ids = [c.id for c in got.calls]
        expect(len(set(ids)), len(ids), f"different ids among {ids}")
        for call, w in zip(got.calls, want, strict=True):
            expect(call.id, w.get("id", call.id), "the model's own id")
            expect(bool(call.id), True, "an id")


def cases():
    """All recordings that are heard to their end."""
    found = []
    for file in sorted(RECORDINGS.glob("*/*.json")):
        want = json.loads(file.read_text())
        if "finish" in want:
            found.append(Case(file.parent.name, file.stem, want))
    return found


def case(model, name):
    return next(c for c in cases() if (c.model, c.name) == (model, name))


def expect(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def raises(kind, f):
    """Calls f and returns the exception, which is of exactly this kind."""
    try:
        f()
    except kind as e:
        expect(type(e), kind, "type of the exception")
        return e
    raise AssertionError(f"no {kind.__name__} was raised")


def valid_calls(calls):
    """Checks that calls keep to the tools' schemas, as far as these go."""
    tools = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
    expect(bool(calls), True, "calls")
    for call in calls:
        valid(json.loads(call.arguments), tools[call.name])


def valid(value, schema):
    """A validator of what the schemas beside the recordings use."""
    if "enum" in schema:
        expect(value in schema["enum"], True, f"{value!r} in {schema['enum']}")
        return
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    expect(type(value), kinds[schema["type"]], f"type of {value!r}")
    match schema["type"]:
        case "object":
            expect(set(schema.get("required", [])) <= set(value) <= set(schema["properties"]), True, f"members of {value}")
            for name, member in value.items():
                valid(member, schema["properties"][name])
        case "array":
            expect(len(value) <= schema["maxItems"], True, f"length of {value}")
            for element in value:
                valid(element, schema["items"])
        case "string":
            expect(len(value) <= schema["maxLength"], True, f"length of {value!r}")
        case "integer":
            expect(schema["minimum"] <= value <= schema["maximum"], True, f"range of {value}")


class Report:
    """Runs checks, prints a line for each, and knows how many failed."""

    def __init__(self, client):
        self.client, self.failed, self.passed = client, 0, 0

    def check(self, name, f, *args):
        try:
            f(*args)
        except Exception as e:
            self.failed += 1
            at = traceback.extract_tb(e.__traceback__)
            where = " < ".join(f"{pathlib.Path(f.filename).name}:{f.lineno}" for f in reversed(at[1:]))
            print(f"FAIL  {name}: {type(e).__name__}: {str(e)[:600]}  ({where})", flush=True)
        else:
            self.passed += 1
            print(f"ok    {name}", flush=True)

    def end(self):
        print(f"{self.client}: {self.passed} checks passed, {self.failed} failed")
        sys.exit(1 if self.failed else 0)

"""Holds Penstock in front of real SGLang.

What it proves, of a release in a directory of install.sh:

    two engines   pages of 16, LoRA, one with and one without replay of events: cold, hot and grown prompts, salts, an
                  adapter with and without salts, JSON by a schema, requests that are passed on, a flushed cache, an
                  engine that is killed in the middle of a stream, and both engines killed and started again
    two ranks     one process with two data-parallel ranks, pages of 64, no replay, a cache too small for its prompts
    single tokens pages of 1: what is predicted is within a block of 32
    pictures      a Qwen2-VL, pages of 16

In each, Penstock predicts the cached tokens that the engine reports.
"""

import json

import check
import make_vision_model
import pictures as shown
import servers
from check import Penstock, agrees, near, until, words
from servers import sglang_version as version


def given(engine, directory, **options):
    """The engine as --engine takes it: releases before 0.5.22 do not say where their replay is."""
    if version(directory) < (0, 5, 22) and engine.replay:
        options |= {"events": engine.events, "replay": engine.replay}
    return ",".join([f"sglang={engine.url}"] + [f"{k}={v}" for k, v in options.items()])


def sglang(binary, model, directory, work):
    reference = two_engines(binary, model, directory, work)
    two_ranks(binary, model, directory, work)
    single_tokens(binary, model, directory, work)
    pictures(binary, directory, work)
    return reference


class Running:
    """Engines and a Penstock in front of them, which end together."""

    def __init__(self, binary, model, directory, work, name, engines, **options):
        self.work, self.engines, self.penstock = work / name, engines, None
        print(f"\n  {name}", flush=True)
        self.work.mkdir()
        try:
            for e in engines:
                e.start()
            for e in engines:
                e.ready(1200)
            self.penstock = Penstock(binary, model, self.work, [given(e, directory, **options) for e in engines], check.WHERE_CACHED)
        except BaseException:
            self.end()
            raise

    def __enter__(self):
        return self.penstock

    def __exit__(self, *failed):
        if self.penstock and not any(failed):
            check.check("penstock ends well", self.penstock.stop() == 0)
            self.penstock = None
        self.end()

    def end(self):
        if self.penstock:
            self.penstock.stop()
        for e in self.engines:
            e.stop()


def no_warnings(p, replay=True):
    """Without replay it is said that what was cached before, as by the engine's own warm-up, is not known."""
    rows = p.workers()
    warnings = [w for r in rows.values() for w in r["warnings"] if replay or w["code"] != "kv_events_lost"]
    check.check("no engine has warnings", not warnings, warnings)
    return rows


def two_engines(binary, model, directory, work):
    block = 16
    arguments = (
        "--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "8", "--lora-paths", f"ad={model}/adapter",
        "--constrained-json-disable-any-whitespace",
    )  # fmt: skip
    engines = [servers.sglang(directory, model, work, f"sglang{i}", page=block, replay=i == 1, arguments=arguments) for i in (1, 2)]
    running = Running(binary, model, directory, work, "two engines", engines)
    with running as p:
        rows = no_warnings(p, replay=False)
        check.check("two engines are served", len(rows) == 2 and {r["engine"] for r in rows.values()} == {"sglang"}, rows)
        check.conversations(p, block, 6)
        used = {row["worker"] for row in check.table}
        check.check("both engines had requests", len(used) == 2, used)
        if tells_salts := version(directory) >= (0, 5, 18):
            check.conversations(p, block, 2, salt="tenant")
        isolated(p, block, "tiny", 500, tells_salts)
        tells_adapters = version(directory) >= (0, 5, 22)
        if tells_adapters:
            check.adapters(p, block)
        isolated(p, block, "ad", 501, tells_adapters)
        if version(directory) >= (0, 5, 18):
            schema(p)
        else:
            print("LEFT OUT: answers by a schema, for which this release has no code for CPUs")
        check.check("every feed is live", all(r["feed"]["state"] == "live" for r in p.workers().values()), p.workers())
        check.passed_on(binary, model, running.work, given(engines[0], directory))
        reference = p.ask("reference", words(5, 60), limit=64)["text"]
        worker, held = check.migration(p, engines, engines[0].url)
        check.recovery(p, engines, worker, block)
        other = 3 - worker
        engines[other - 1].kill()
        check.recovery(p, engines, other, block, seed=701)
        flushed(p, engines[worker - 1], worker, block)
    return reference


def isolated(p, block, model, seed, told):
    """A prompt is reused under its own salt alone. It is predicted so, or not at all by a release whose events do not tell."""
    text, seen = words(seed, 200), []
    for salt in ("a", "a", "b", "", ""):
        fields = {"cache_salt": salt} if salt else {}
        if not told:
            fields["nvext"] = {"backend_instance_id": 1}
        row = p.ask(f"salt {salt or 'none'}, {model}" + ("" if told else ", untold"), text, model=model, **fields)
        seen.append((row["predicted"], row["reported"]))
        # What was sent two seconds ago is expected to be there without an event.
        right = row["predicted"] == row["reported"] or not told and not row["predicted"]
        check.check(f"{model}, salt {salt or 'none'}: predicted is reported" + ("" if told else ", or nothing is predicted"), right, row)
        until(lambda: False, 1)  # explain does not take salts, so nothing says that the events have come
    hits = [reported > 0 for _, reported in seen]
    check.check(f"{model}: salts keep caches apart", hits == [False, True, False, False, True], seen)


def schema(p):
    """An answer by a JSON schema ends, and is valid."""
    fields = {"city": {"enum": ["Paris", "Oslo"]}, "large": {"type": "boolean"}}
    wanted = {"type": "object", "properties": fields, "required": ["city", "large"], "additionalProperties": False}
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": words(600, 40)}], "max_tokens": 200, "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": wanted}},
    }  # fmt: skip
    said = p.get("/v1/chat/completions", body)["choices"][0]
    try:
        answer = json.loads(said["message"]["content"])
    except (TypeError, ValueError):
        answer = {}
    good = answer.get("city") in fields["city"]["enum"] and isinstance(answer.get("large"), bool) and len(answer) == 2
    check.check("an answer by a schema ends and is valid", good and said["finish_reason"] == "stop", said)


def flushed(p, engine, worker, block):
    text = words(800, 100)
    p.ask("before a flush", text, nvext={"backend_instance_id": worker})
    p.learn(text, worker, 3)
    done = until(lambda: servers.call(engine.url + "/flush_cache", b"", method="POST")[0] == 200, 10)
    forgotten = until(lambda: p.believed(text).get(worker) == 0, 10)
    check.check("a flushed cache is forgotten", done and forgotten, p.believed(text))
    row = p.ask("after a flush", text, nvext={"backend_instance_id": worker})
    check.check("after a flush predicted is reported", row["reported"] == 0 and agrees(row, block), row)


def two_ranks(binary, model, directory, work):
    """Prompts of 300 to 700 tokens on two ranks with room for 2,048 each: blocks come and go."""
    block = 64
    engine = servers.sglang(directory, model, work, "ranks", page=block, ranks=2, tokens=2048, context=2048, replay=False)
    with Running(binary, model, directory, work, "two ranks", [engine]) as p:
        rows = no_warnings(p, replay=False)
        check.check("two ranks are two workers", len(rows) == 2, rows)
        began = len(check.table)
        check.conversations(p, block, 2)
        wrong = []
        for i in range(60):
            row = p.ask("few blocks", words(1000 + i * 7 % 11, 150 + 20 * (i * 7 % 11)), limit=4)
            if not agrees(row, 0):
                wrong.append(row)
            until(lambda: False, 0.1)
        reused = sum(r["reported"] for r in check.table[began:])
        check.check("with a cache that is too small predicted is reported", not wrong and reused > 0, wrong)
        check.check("both ranks had requests", len({r["worker"] for r in check.table[began:]}) == 2)
        removed = [r["feed"] for r in p.workers().values()]
        check.check("every feed is live", all(f["state"] == "live" for f in removed), removed)


def single_tokens(binary, model, directory, work):
    engine = servers.sglang(directory, model, work, "single", page=1)
    with Running(binary, model, directory, work, "single tokens", [engine]) as p:
        no_warnings(p)
        block = p.explain("x")[1]["decision"]["block_size"]
        check.conversations(p, block, 3, common=8)


def pictures(binary, directory, work):
    block = 16
    make_vision_model.main(work / "vision")
    arguments = ("--enable-multimodal", "--mm-attention-backend", "sdpa")
    engine = servers.sglang(directory, work / "vision", work, "pictures", page=block, arguments=arguments)
    with Running(binary, work / "vision", directory, work, "pictures", [engine]) as p:
        no_warnings(p)
        before, after = "What is this? ", words(1, 60)
        for i, (width, height) in enumerate(shown.SIZES):
            for seed in (2 * i, 2 * i + 1):
                picture(p, [before, shown.data_uri(width, height, seed), after], f"picture {seed} of {width} x {height}", block)
        beside = [shown.data_uri(112, 112, 900), shown.data_uri(280, 140, 901), after, shown.data_uri(84, 84, 902), after]
        picture(p, beside, "three pictures", block)


def picture(p, parts, name, block):
    cold = check.look(p, "picture, cold", parts, block=block)
    check.check(f"{name}: cold, predicted is reported", cold["reported"] < cold["prompt"] - block and near(cold, block), cold)
    blocks = (cold["prompt"] - 1) // block
    known = until(lambda: check.look(p, None, parts, block=block)["predicted"] >= blocks * block, 10)
    hot = check.look(p, "picture, hot", parts, block=block)
    check.check(f"{name}: hot, predicted is reported", known and hot["predicted"] == hot["reported"] >= blocks * block, hot)

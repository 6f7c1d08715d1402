"""Holds Penstock in front of real engines against what the engines say themselves.

    check.py [--logs DIR] PENSTOCK MODEL [vllm=DIR] [pictures=DIR] [legs=DIR] [sglang=DIR] [sglang-VERSION=DIR] [llamacpp=DIR]

PENSTOCK is the binary, MODEL a directory of make_model.py and each DIR one of
install.sh. Prints a line for each check, a table of predicted beside reported
cached tokens, and ends with 1 if anything failed. With --logs the logs of all
processes are kept in DIR. Only the standard library is used.
"""

import contextlib
import http.client
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import make_vision_model
import pictures as shown
import servers

WORDS = (
    "the router sends each request to the worker that already holds most of its cache and goes on elsewhere "
    "with the tokens that are out when a worker dies so that the client sees one answer whole and in order"
).split()

UNNOTICED = 20  # seconds that a dead engine may stay unnoticed: canary-interval, its 3 s, and a report

failures = []
table = []


def check(name, good, detail=""):
    print(f"{'ok    ' if good else 'FAILED'} {name}{': ' + str(detail) if detail and not good else ''}", flush=True)
    if not good:
        failures.append(name)
    return good


def words(seed, count):
    """A text that differs from its first words on by seed."""
    state, out = seed * 2654435761 + 1, [f"Document {seed}:"]
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(WORDS[(state >> 33) % len(WORDS)])
    return " ".join(out)


def whole(text):
    """A text without the beginning of a character at its end: the last token can end inside of one. vLLM sends nothing
    of it, and Penstock U+FFFD."""
    return text.rstrip("\ufffd")


def stream(url, path, body, on_chunk=lambda count, worker: None):
    """One streamed completion: its text, and its last object with usage."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=120)
    with contextlib.closing(connection):
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise servers.Failed(f"{path}: HTTP {answer.status}: {answer.read()[:300]}")
        worker, text, chunks, last, done = answer.headers.get("x-penstock-worker"), "", 0, {}, False
        for line in answer:
            line = line.strip()
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]":
                done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise servers.Failed(f"an error in the stream after {chunks} chunks: {event['error']}")
            last = last | event
            for choice in event["choices"]:
                text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                chunks += 1
                on_chunk(chunks, worker)
        if not done:
            raise servers.Failed(f"the stream broke off after {chunks} chunks")
        return text, last


class Penstock:
    def __init__(self, binary, model, work, engines, settings=()):
        self.log = (work / "penstock.log").open("wb")
        command = [binary, "up", "--http-addr", "127.0.0.1:0", "--json", "--data-dir", str(work / "data")]
        if model:
            command += ["--model-path", str(pathlib.Path(model) / "model")]
        command += settings
        for engine in engines:
            command += ["--engine", engine]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, stdin=subprocess.DEVNULL)
        line = self.process.stdout.readline()
        if not line:
            raise servers.Failed("penstock up did not start:\n" + self.tail(work))
        self.url, self.work, self.binary = json.loads(line)["url"], work, binary

    def tail(self, work):
        return "\n".join((work / "penstock.log").read_text().splitlines()[-15:])

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)

    def get(self, path, body=None):
        status, answer = servers.call(self.url + path, body)
        if status != 200:
            raise servers.Failed(f"{path}: HTTP {status}: {answer[:300]}")
        return json.loads(answer)

    def explain(self, prompt, model="tiny"):
        """Blocks that each worker has announced of a prompt, without the ones which are only predicted, and the choice."""
        said = self.get("/v1/router/explain", {"model": model, "prompt": prompt})
        return {c["worker_id"]: c["overlap_blocks"]["device"] - c["predicted_blocks"] for c in said["candidates"]}, said

    def believed(self, prompt):
        """Blocks that each worker is believed to hold of a prompt, announced or predicted."""
        return {c["worker_id"]: c["overlap_blocks"]["device"] for c in self.explain(prompt)[1]["candidates"]}

    def learn(self, prompt, worker, blocks, model="tiny", seconds=10):
        """Waits until a worker has announced so many blocks."""
        return until(lambda: self.explain(prompt, model)[0].get(worker, -1) >= blocks, seconds)

    def workers(self):
        return {row["worker_id"]: row for row in self.get("/v1/router/workers")["rows"]}

    def ask(self, kind, prompt, limit=8, **fields):
        """One completion; keeps what was predicted and reported for the table."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": limit, "temperature": 0, "ignore_eos": True} | fields
        status, answer = servers.call(self.url + "/v1/completions", body)
        if status != 200:
            raise servers.Failed(f"{kind}: HTTP {status}: {answer[:300]}")
        answer = json.loads(answer)
        attempt = answer["nvext"]["workers"][-1]
        row = {
            "kind": kind,
            "prompt": answer["usage"]["prompt_tokens"],
            "worker": attempt["worker_id"],
            "predicted": attempt.get("predicted_cached_tokens"),
            "reported": attempt.get("reported_cached_tokens"),
            "usage": (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens"),
            "text": answer["choices"][0]["text"],
        }
        table.append(row)
        return row


def until(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)  # events cross two sockets and a process; the bound is what is checked
    return False


def agrees(row, block):
    known = row["predicted"] is not None and row["reported"] is not None
    return known and abs(row["predicted"] - row["reported"]) <= block and row["usage"] == row["reported"]


def conversations(p, block, count, salt=None, common=0, slots=False):
    """Prompts cold, hot and grown; what is predicted must be what is reported. An engine that reuses single tokens
    finds the few in which all prompts begin alike. The blocks of an engine with slots are removed while a request
    uses them, and stored anew after it: the next request waits for that, so that nothing else is measured."""
    fields = {"cache_salt": salt} if salt else {}

    def ask(kind, text):
        row = p.ask(kind, text, **fields)
        if slots:
            known = p.learn(text, row["worker"], (row["prompt"] - 1) // block)
            check(f"{kind}: the slot's blocks are stored", known, (row, p.explain(text)))
        return row

    for i in range(count):
        text = words(100 * bool(salt) + i, 150 + 60 * i)
        cold = ask("cold", text)
        check(f"prompt {i} is cold", cold["reported"] <= common and agrees(cold, block), cold)
        blocks = (cold["prompt"] - 1) // block
        if not salt:  # explain of a salted prompt is the same question
            check(f"prompt {i}: its blocks become known", p.learn(text, cold["worker"], blocks), p.explain(text))
            held, said = p.explain(text)
            check(f"prompt {i}: explain names its worker", said["decision"]["worker_id"] == cold["worker"], said["decision"])
        else:
            until(lambda: False, 1)
        hot = ask("hot", text)
        check(f"prompt {i} is hot where it was cold", hot["worker"] == cold["worker"], hot)
        check(f"prompt {i}: predicted is reported", agrees(hot, block), hot)
        check(f"prompt {i}: all that can be reused is", hot["reported"] >= blocks * block, hot)
        check(f"prompt {i}: the answer is the same", hot["text"] == cold["text"], (cold["text"], hot["text"]))
        # An engine without events is followed by its answers: its blocks are known a moment after the last.
        known = salt or p.learn(text, hot["worker"], blocks)
        grown = ask("grown", text + cold["text"] + " " + words(50 + i, 40))
        check(f"prompt {i} grown: predicted is reported", known and agrees(grown, block) and grown["reported"] > 0, grown)


# Prompts of these lengths take less time than the times of a busy machine vary: mode time may rightly send one
# away from the worker which has its blocks. What is checked here needs them where they are.
WHERE_CACHED = ("--router-mode", "kv")


def migration(p, engines, reference, limit=500):
    """Kills the engine that serves a stream; the client must see it whole.

    On a busy machine an engine may have ended its stream before its first tokens are read here. Killing it then
    proves nothing: it is started again, and killed in the next stream.
    """
    for trial in range(3):
        prompt = words(900 + trial, 120)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": limit, "temperature": 0, "ignore_eos": True}
        want, _ = stream(reference, "/v1/completions", body)
        killed = []

        def kill(count, worker):
            if count >= 2 and not killed:
                killed.append(int(worker))
                engines[int(worker) - 1].kill()

        got, last = stream(p.url, "/v1/completions", body, kill)
        if not check("an engine was killed in mid-stream", len(killed) == 1, last):
            raise servers.Failed("there is nothing to recover from")
        got, want = whole(got), whole(want)
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        check("the stream is whole", got == want, f"{len(got)} characters, want {len(want)}: after {at} {got[at - 20 : at + 40]!r}, want {want[at - 20 : at + 40]!r}")
        check("all tokens are counted", last["usage"]["completion_tokens"] == limit, last["usage"])
        if last["nvext"]["attempts"] > 1:
            break
        print("the engine had ended its stream before it was killed")
        until(lambda: p.workers()[killed[0]]["state"] == "not_ready", UNNOTICED)
        engines[killed[0] - 1].start().ready(1200)
        until(lambda: p.workers()[killed[0]]["state"] == "ready", 30)
    check("it took two engines", last["nvext"]["attempts"] == 2, last["nvext"])
    return killed[0], prompt


def recovery(p, engines, worker, block, seed=700):
    """The killed engine must be taken in again, with an empty cache."""
    held = [words(i, 150 + 60 * i) for i in range(6)]
    other = {w for w in p.workers() if w != worker}
    for i, text in enumerate(held):  # none of these may fail while the engine is down
        row = p.ask("down", text)
        check(f"prompt {i} is served while worker {worker} is down", row["worker"] in other, row)
    check("the dead engine gets no requests", until(lambda: p.workers()[worker]["state"] == "not_ready", UNNOTICED), p.workers()[worker]["state"])
    engines[worker - 1].start().ready(1200)
    check("the engine is taken in again", until(lambda: p.workers()[worker]["state"] == "ready", 30), p.workers()[worker]["state"])
    forgotten = until(lambda: all(p.believed(text).get(worker) == 0 for text in held), 30)
    check("its old cache is forgotten", forgotten, [p.believed(text) for text in held])
    text = words(seed, 200)
    first = p.ask("after restart", text, nvext={"backend_instance_id": worker})
    check("it serves", first["worker"] == worker and first["reported"] == 0 and agrees(first, block), first)
    blocks = (first["prompt"] - 1) // block
    check("its events are heard again", p.learn(text, worker, blocks, seconds=20), p.explain(text))
    again = p.ask("after restart, hot", text)
    check("and predict again", again["worker"] == worker and agrees(again, block) and again["reported"] > 0, again)


def vllm(binary, model, directory, work):
    block = 32
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"ad={model}/adapter")
    if without_lora := (0, 17) <= version(directory) < (0, 24):
        lora = ()
        print("LEFT OUT: LoRA adapters, which this version computes with Triton alone")
    # One has the endpoint for tokens, where that must be asked for; the other has not.
    generate = lora + (("--enable-scale-out",) if version(directory) >= (0, 30) else ())
    engines = [
        servers.vllm(directory, model, work, "vllm1", block=block, arguments=lora),
        servers.vllm(directory, model, work, "vllm2", block=block, arguments=generate),
    ]
    p = None
    try:
        for e in engines:
            e.start()
        for e in engines:
            e.ready()
        p = Penstock(binary, model, work, [f"vllm={e.url},events={e.events},replay={e.replay}" for e in engines], WHERE_CACHED)
        rows = p.workers()
        check("two engines are served", len(rows) == 2 and {r["engine"] for r in rows.values()} == {"vllm"}, rows)
        check("no engine has warnings", not any(r["warnings"] for r in rows.values()), [r["warnings"] for r in rows.values()])
        conversations(p, block, 6)
        used = {row["worker"] for row in table}
        check("both engines had requests", len(used) == 2, used)
        if version(directory) >= (0, 18):  # before, events do not tell salts
            conversations(p, block, 2, salt="tenant")
        if not without_lora:
            adapters(p, block)
        check("every feed is live", all(r["feed"]["state"] == "live" for r in p.workers().values()), p.workers())
        first = engines[0]
        passed_on(binary, model, work, f"vllm={first.url},events={first.events},replay={first.replay}")
        reference = p.ask("reference", words(5, 60), limit=64)["text"]
        worker, _ = migration(p, engines, first.url, limit=1500)
        recovery(p, engines, worker, block)
        check("penstock ends well", p.stop() == 0)
        p = None
        return reference
    finally:
        if p:
            p.stop()
        for e in engines:
            e.stop()


def passed_on(binary, model, work, engine):
    """The same engine without a tokenizer here: requests go to it as they are."""
    (work / "pass").mkdir()
    p = Penstock(binary, model, work / "pass", [engine + ",mode=pass"])
    try:
        body = {"model": "tiny", "messages": [{"role": "user", "content": words(400, 150)}], "max_tokens": 4, "temperature": 0}
        cold, hot = p.get("/v1/chat/completions", body), p.get("/v1/chat/completions", body)
        cached = hot["usage"]["prompt_tokens_details"]["cached_tokens"]
        check("passed on, the answer is the engine's", cold["choices"] == hot["choices"] and cached > 0, hot)
        said = until(lambda: (p.workers()[1]["predictions"] or {}).get("requests", 0) >= 2, 10)
        told = p.workers()[1]["predictions"]
        near = told and abs(told["predicted_cached_tokens"] - cached) <= p.get("/health")["engines"][0]["block_size"]
        check("passed on, predicted is reported", said and near, told)
    finally:
        p.stop()


def pictures(binary, model, directory, work):
    """A small Qwen2-VL: pictures are counted, named and cached as Penstock believes."""
    block, sees = 32, {"PYTHONPATH": str(directory)}
    make_vision_model.main(work / "vision")
    engine = (pathlib.Path(directory) / "engine").read_text().strip()
    engines = [servers.vllm(engine, work / "vision", work, f"pictures{i}", block=block, env=sees, arguments=["--enable-scale-out"]) for i in (1, 2)]
    p = None
    try:
        for e in engines:
            e.start()
        for e in engines:
            e.ready()
        p = Penstock(binary, work / "vision", work, [f"vllm={e.url},events={e.events},replay={e.replay}" for e in engines], WHERE_CACHED)
        cards = p.get("/v1/models")["data"]
        check("one model is served", [m["id"] for m in cards] == ["tiny"], cards)
        of = lambda: [e.get("media_checks") for e in p.get("/health")["engines"]]
        compared = until(lambda: all(of()), 60) and [c for checks in of() for c in checks]
        agree = compared and all(not c.get("unchecked") and c["counted"] == c["reported"] for c in compared)
        check("pictures, JPEG sequences and GIFs are counted as the engines do", agree and len(compared) == 2 * 4, compared)
        before, after = "What is this? ", words(1, 60)
        workers = set()
        for i, (width, height) in enumerate(shown.SIZES):
            for seed in (2 * i, 2 * i + 1):
                parts = [before, shown.data_uri(width, height, seed), after]
                name = f"picture {seed} of {width} x {height}"
                cold = look(p, "picture, cold", parts)
                check(f"{name} is cold", cold["reported"] < block and near(cold, block), cold)
                blocks = (cold["prompt"] - 1) // block
                known = until(lambda: look(p, None, parts)["predicted"] >= blocks * block, 10)
                hot = look(p, "picture, hot", parts)
                check(f"{name}: predicted is reported", known and near(hot, block) and hot["reported"] >= blocks * block, hot)
                check(f"{name} is looked at where it was before", hot["worker"] == cold["worker"], hot)
                workers.add(hot["worker"])
        beside = [shown.data_uri(112, 112, 900), shown.data_uri(280, 140, 901), after, shown.data_uri(84, 84, 902), after]
        look(p, "three, cold", beside)
        until(lambda: look(p, None, beside)["predicted"] > 0, 10)
        hot = look(p, "three, hot", beside)
        check("three pictures, two side by side: predicted is reported", near(hot, block) and hot["reported"] > 3 * block, hot)
        check("both engines had pictures", len(workers) == 2, workers)
        said = {}
        for line in servers.call(p.url + "/metrics")[1].decode().splitlines():
            if line.startswith("penstock_frontend_media_"):
                said[line.split("{")[0]] = float(line.rsplit(" ", 1)[1])
        predicted, reported = said.get("penstock_frontend_media_predicted_tokens_total"), said.get("penstock_frontend_media_reported_tokens_total")
        check("the tokens of all prompts were counted right", predicted == reported and predicted, (predicted, reported))
        rows = p.workers()
        check("no engine has warnings", not any(r["warnings"] for r in rows.values()), [r["warnings"] for r in rows.values()])
        check("penstock ends well", p.stop() == 0)
        p = None
        # Without the model's files here, the engine itself says which tokens a conversation has, and which pictures.
        (work / "asks").mkdir()
        given = [f"vllm={e.url},events={e.events},replay={e.replay},mode=pass" for e in engines]
        p = Penstock(binary, None, work / "asks", given, ["--preprocess", "engine"])
        for i, (width, height) in enumerate(shown.SIZES[:3]):
            parts = [before, shown.data_uri(width, height, 500 + i), after]
            cold = look(p, "engine's, cold", parts)
            blocks = (cold["prompt"] - 1) // block
            known = until(lambda: look(p, None, parts)["predicted"] >= blocks * block, 10)
            hot = look(p, "engine's, hot", parts)
            good = cold["reported"] < block and known and near(hot, block) and hot["reported"] >= blocks * block
            check(f"rendered by the engine, {width} x {height}: predicted is reported", good and hot["worker"] == cold["worker"], (cold, hot))
        check("penstock ends well", p.stop() == 0)
        p = None
        shipped(binary, engines, work, block)
    finally:
        if p:
            p.stop()
        for e in engines:
            e.stop()
    if version(engine) >= (0, 32):
        encoded_elsewhere(binary, engine, directory, work)
    else:
        print("LEFT OUT: an engine which encodes for another one, which needs 0.32")


def encoder_runs(server):
    """Objects which an engine's encoder has computed, by its log (--enable-logging-iteration-details)."""
    return sum(int(n) for n in re.findall(r"encoder inputs: (\d+)", server.log.read_text(errors="replace")))


def encoded_elsewhere(binary, engine, directory, work):
    """One engine encodes the pictures of another one's requests; both share a directory (ECExampleConnector)."""
    store = work / "store"

    def server(name, role):
        config = {"ec_connector": "ECExampleConnector", "ec_role": role, "ec_connector_extra_config": {"shared_storage_path": str(store)}}
        given = ("--enable-logging-iteration-details",) + (("--ec-transfer-config", json.dumps(config)) if role else ())
        return servers.vllm(engine, work / "vision", work, name, arguments=given, env={"PYTHONPATH": str(directory)})

    def stored():
        return {f.parent.name: f.stat().st_mtime_ns for f in store.glob("*/encoder_cache.safetensors")}

    def fresh():
        """Empties the consumer's caches: what it shows next it must get from somewhere."""
        return all(servers.call(f"{consumer.url}/{path}", b"")[0] == 200 for path in ("reset_prefix_cache", "reset_encoder_cache"))

    def said(of, parts, name=None):
        """What an engine answers itself, to pictures under a name."""
        body = showing(parts, 24)
        for part in body["messages"][0]["content"]:
            if name and part["type"] == "image_url":
                part["uuid"] = name
        status, answer = servers.call(of.url + "/v1/chat/completions", body, timeout=120)
        if status != 200:
            raise servers.Failed(f"{of.name}: HTTP {status}: {answer[:300]}")
        return json.loads(answer)["choices"][0]["message"]["content"]

    producer, consumer, alone = server("producer", "ec_producer"), server("consumer", "ec_consumer"), server("alone", None)
    p = None
    try:
        for e in (producer, consumer, alone):
            e.start()
        for e in (producer, consumer, alone):
            e.ready(1200)
        (work / "encoded").mkdir()
        given = [f"vllm={consumer.url},events={consumer.events},replay={consumer.replay},ec-role=consumer", f"vllm={producer.url},ec-role=producer"]
        p = Penstock(binary, work / "vision", work / "encoded", given, ["--canary-interval", "2s"])
        rows = p.workers()
        check("a worker serves and one encodes", sorted(r["role"] for r in rows.values()) == ["aggregated", "encode"], rows)
        check("neither has warnings", not any(r["warnings"] for r in rows.values()), [r["warnings"] for r in rows.values()])
        before, after = "What is this? ", words(4, 60)
        compared = until(lambda: any(e.get("media_checks") for e in p.get("/health")["engines"]), 60)
        check("the consumer's counts of media are compared first, with samples which it encodes", compared)
        runs, known = encoder_runs(consumer), stored()
        for i, (width, height) in enumerate(shown.SIZES):
            parts = [before, shown.data_uri(width, height, 1000 + i), after]
            want = said(alone, parts)
            first = look(p, None, parts, 24)["text"]
            was, now = known, stored()
            check(f"encoded elsewhere, {width} x {height}: the answer is that of an engine alone", first == want, (first, want))
            check(f"encoded elsewhere, {width} x {height}: one output more is stored", len(now) == len(was) + 1, (was, now))
            again = look(p, None, [words(5, 20), *parts], 24)["text"]
            check(f"encoded elsewhere, {width} x {height}: shown again it is not encoded again", stored() == now, (now, stored()))
            check(f"encoded elsewhere, {width} x {height}: and answered right", again == said(alone, [words(5, 20), *parts]), again)
            known = now
        many = [x for i in range(3) for x in (shown.data_uri(56 + 28 * i, 84, 1100), after)]
        check("three pictures at once: the answer is that of an engine alone", look(p, None, many, 24)["text"] == said(alone, many))
        known = stored()
        look(p, None, [words(6, 40)], 8)
        check("a text has nothing encoded", stored() == known)
        check("the consumer's encoder did not run", encoder_runs(consumer) == runs, (runs, encoder_runs(consumer)))
        check("the producer's did, and that of the engine alone", encoder_runs(producer) >= len(shown.SIZES) + 3 and encoder_runs(alone) >= len(shown.SIZES) + 3)

        # The consumer reads what the producer stored: with other numbers in its place it answers something else.
        name, parts = "f" * 64, [before, shown.data_uri(112, 112, 1200), after]
        said(producer, parts, name)
        file = store / name / "encoder_cache.safetensors"
        head = 8 + int.from_bytes(file.read_bytes()[:8], "little")
        file.write_bytes(file.read_bytes()[:head] + bytes(len(file.read_bytes()) - head))
        check("with zeros for what was stored the consumer answers otherwise", said(consumer, parts, name) != said(alone, parts))

        # What is evicted from the store between two requests.
        parts = [before, shown.data_uri(112, 112, 1300), after]
        want = said(alone, parts)
        look(p, None, parts, 24)
        for gone in set(stored()) - set(known) - {name}:
            (store / gone / "encoder_cache.safetensors").unlink()
        check("the consumer forgets", fresh())
        check("an evicted output: the answer is right", look(p, None, parts, 24)["text"] == want)

        producer.kill()
        check("the dead producer is noticed", until(lambda: p.workers()[2]["state"] != "ready", UNNOTICED), p.workers()[2])
        check("the consumer forgets again", fresh())
        runs, known = encoder_runs(consumer), stored()
        for i, (width, height) in enumerate(shown.SIZES[:3]):
            parts = [before, shown.data_uri(width, height, 1400 + i), after]
            check(f"without producer, {width} x {height}: the answer is right", look(p, None, parts, 24)["text"] == said(alone, parts))
        check("the consumer encoded itself", encoder_runs(consumer) == runs + 3 and stored() == known, (runs, encoder_runs(consumer)))
        check("penstock ends well", p.stop() == 0)
        p = None
    finally:
        if p:
            p.stop()
        for e in (producer, consumer, alone):
            e.stop()


def shipped(binary, engines, work, block):
    """What the processor of one engine made of pictures goes to another one with the tokens."""
    given = [f"vllm={e.url},events={e.events},replay={e.replay}" for e in engines]
    with contextlib.ExitStack() as running:

        def penstock(name, *settings):
            (work / name).mkdir()
            p = Penstock(binary, work / "vision", work / name, given, ["--preprocess", "engine", *settings])
            running.callback(p.stop)
            return p

        ships, passes = penstock("ships"), penstock("passes", "--mm-transfer", "off")
        before, after = "What is this? ", words(2, 60)
        for i, (width, height) in enumerate(shown.SIZES):
            parts = [before, shown.data_uri(width, height, 700 + i), after]
            cold = look(ships, "shipped, cold", parts, 24)
            blocks = (cold["prompt"] - 1) // block
            known = until(lambda: look(ships, None, parts)["predicted"] >= blocks * block, 10)
            hot = look(ships, "shipped, hot", parts, 24)
            good = cold["reported"] < block and known and hot["predicted"] == hot["reported"] == blocks * block
            check(f"shipped, {width} x {height}: predicted is reported", good and hot["worker"] == cold["worker"], (cold, hot))
            passed = look(passes, None, parts, 24)
            check(f"shipped, {width} x {height}: the answer is that of pass mode", cold["text"] == hot["text"] == passed["text"], (cold, hot, passed))
        beside = [shown.data_uri(112, 112, 900), shown.data_uri(280, 140, 903), after, shown.data_uri(84, 84, 904), after]
        check("three shipped pictures are answered as in pass mode", look(ships, "three, shipped", beside, 24)["text"] == look(passes, None, beside, 24)["text"])
        check("all went with what a processor made", counted(ships, "shipped") > len(shown.SIZES) and not counted(ships, "unshipped"), counted(ships, "shipped"))
        check("and none of the others", not counted(passes, "shipped"))
        check("no engine has warnings", not any(r["warnings"] for r in ships.workers().values()), ships.workers())
        # A stream about a picture, whose engine is killed, goes on at the other one. It is killed early, because the
        # engine is ahead of this client on a busy machine; in a longer answer a prompt which is computed anew may lead to
        # another token than decoding did.
        about = showing([before, shown.data_uri(333, 277, 800), words(3, 100)], 300)
        want, _ = stream(ships.url, "/v1/chat/completions", about)
        killed = []

        def kill(count, worker):
            if count >= 2 and not killed:
                killed.append(int(worker))
                engines[int(worker) - 1].kill()

        got, last = stream(ships.url, "/v1/chat/completions", about, kill)
        check("an engine was killed in the middle of an answer about a picture", len(killed) == 1 and last["nvext"]["attempts"] == 2, last)
        check("the answer about the picture is whole", got == want and last["usage"]["completion_tokens"] == 300, (got[:200], want[:200]))


def counted(p, what):
    """Requests whose processed media were shipped, or not taken, by the metrics."""
    lines = servers.call(p.url + "/metrics")[1].decode().splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(f"penstock_frontend_media_{what}_total"))


def showing(parts, limit):
    content = [{"type": "image_url", "image_url": {"url": x}} if x.startswith("data:") else {"type": "text", "text": x} for x in parts]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": limit, "temperature": 0, "ignore_eos": True}


def look(p, kind, parts, limit=2, block=32):
    """A conversation that shows pictures; kind None leaves it out of the table."""
    body = showing(parts, limit)
    request = urllib.request.Request(p.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        headers, said = answer.headers, json.loads(answer.read())
    usage = said["usage"]
    row = {
        "kind": kind,
        "prompt": usage["prompt_tokens"],
        "worker": int(headers["x-penstock-worker"]),
        "predicted": block * int(headers.get("x-penstock-overlap-blocks") or 0),
        "reported": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        "text": said["choices"][0]["message"]["content"],
    }
    if kind:
        table.append(row)
    return row


def near(row, block):
    return abs(row["predicted"] - row["reported"]) <= block


def adapters(p, block):
    models = {m["id"]: m for m in p.get("/v1/models")["data"]}
    check("the LoRA adapter is a model", models.get("ad", {}).get("parent") == "tiny", models)
    text = words(300, 200)
    base = p.ask("base", text)
    cold = p.ask("adapter", text, model="ad")
    check("the adapter answers otherwise", cold["text"] != base["text"], cold)
    check("blocks of the model are none of the adapter's", cold["reported"] == 0 and agrees(cold, block), cold)
    check("the adapter's blocks become known", p.learn(text, cold["worker"], (cold["prompt"] - 1) // block, model="ad"), p.explain(text, "ad"))
    hot = p.ask("adapter, hot", text, model="ad")
    check("the adapter's blocks are reused as predicted", hot["worker"] == cold["worker"] and hot["reported"] > 0 and agrees(hot, block), hot)
    text = words(301, 200)
    first = p.ask("adapter", text, model="ad")
    learned = p.learn(text, first["worker"], (first["prompt"] - 1) // block, model="ad")
    check("the adapter's blocks become known once more", learned, p.explain(text, "ad"))
    until(lambda: False, 3)  # by then nothing is expected any more because it was sent
    base = p.ask("base", text, nvext={"backend_instance_id": first["worker"]})
    check("blocks of the adapter are none of the model's", base["reported"] == 0 and agrees(base, block), base)
    believed = p.explain(text, "ad")
    hot = p.ask("adapter, hot", text, model="ad")
    right = hot["worker"] == first["worker"] and hot["reported"] > 0 and agrees(hot, block)
    check("the adapter's blocks are still reused as predicted", right, (hot, believed))


def llamacpp(binary, model, directory, work):
    engines = [servers.llamacpp(directory, model, work, f"llamacpp{i}", slots=4) for i in (1, 2)]
    p = None
    try:
        for e in engines:
            e.start()
        for e in engines:
            e.ready()
        p = Penstock(binary, model, work, [f"llamacpp={e.url}" for e in engines], WHERE_CACHED)
        rows = p.workers()
        check("two engines are served", len(rows) == 2 and {r["engine"] for r in rows.values()} == {"llamacpp"}, rows)
        guessed = [e["events"] for e in p.get("/health")["engines"]]
        check("it is said that their caches are guessed", guessed == ["guessed", "guessed"], guessed)
        check("no engine has warnings", not any(r["warnings"] for r in rows.values()), [r["warnings"] for r in rows.values()])
        # The proofs of salts take slots, and their blocks would count as those of the first prompts.
        proven = lambda: (work / "penstock.log").read_bytes().count(b"the engine keeps cache salts apart")
        check("both engines are proven to keep salts apart", until(lambda: proven() == 2, 60), proven())
        block = p.explain("x")[1]["decision"]["block_size"]
        conversations(p, block, 4, slots=True)
        passed_on(binary, model, work, f"llamacpp={engines[0].url}")
        reference = p.ask("reference", words(5, 60), limit=64)["text"]
        # llama.cpp leaves out of its own streams what is no whole character: the reference is Penstock's.
        worker, _ = migration(p, engines, p.url)
        check("the dead engine gets no requests", until(lambda: p.workers()[worker]["state"] == "not_ready", UNNOTICED), p.workers()[worker]["state"])
        engines[worker - 1].start().ready()
        check("the engine is taken in again", until(lambda: p.workers()[worker]["state"] == "ready", 30), p.workers()[worker]["state"])
        check("penstock ends well", p.stop() == 0)
        p = None
        return reference
    finally:
        if p:
            p.stop()
        for e in engines:
            e.stop()


def own(binary, model, work):
    """The same prompt by Penstock's own engine, on the same weights."""
    command = [binary, "up", "--http-addr", "127.0.0.1:0", "--json", "--data-dir", str(work / "own")]
    command += ["--model-path", f"{model}/model", "--served-model-name", "tiny"]
    with (work / "own.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)
    try:
        line = process.stdout.readline()
        if not line:
            raise servers.Failed("penstock up did not start:\n" + (work / "own.log").read_text())
        url = json.loads(line)["url"]
        body = {"model": "tiny", "prompt": words(5, 60), "max_tokens": 64, "temperature": 0, "ignore_eos": True}
        return json.loads(servers.call(url + "/v1/completions", body)[1])["choices"][0]["text"]
    finally:
        process.terminate()
        process.wait()


def version(directory):
    return tuple(map(int, (pathlib.Path(directory) / "version").read_text().strip().lstrip("b").split(".")[:2]))


def report():
    print("\n  prompt kind          tokens  worker  predicted  reported")
    for row in table:
        said = ["-" if row[k] is None else row[k] for k in ("predicted", "reported")]
        print(f"  {row['kind']:<20} {row['prompt']:>6} {row['worker']:>7} {said[0]:>10} {said[1]:>9}")
    known = [r for r in table if r["predicted"] is not None and r["reported"] is not None]
    print(f"  predicted {sum(r['predicted'] for r in known)}, reported {sum(r['reported'] for r in known)} of {len(known)} requests\n")
    table.clear()


def main(*arguments):
    import check_legs  # which import this module
    import check_sglang

    logs = None
    if arguments[0] == "--logs":
        logs, arguments = pathlib.Path(arguments[1]), arguments[2:]
    binary, model, *engines = arguments
    binary, model = str(pathlib.Path(binary).resolve()), str(pathlib.Path(model).resolve())
    work = pathlib.Path(tempfile.mkdtemp())
    texts = {}
    try:
        texts["penstock"] = own(binary, model, work)
        for engine in engines:
            kind, _, directory = engine.partition("=")
            at = work / kind
            at.mkdir()
            print(f"\n--- {kind} {(pathlib.Path(directory) / 'version').read_text().strip()}", flush=True)
            try:
                scenarios = {"vllm": vllm, "pictures": pictures, "legs": check_legs.legs, "sglang": check_sglang.sglang, "llamacpp": llamacpp}
                texts[engine] = scenarios[kind.partition("-")[0]](binary, model, directory, at)
            except (servers.Failed, OSError, KeyError, ValueError) as e:
                check(f"{kind} can be held against", False, repr(e))
                log = at / "penstock.log"
                if log.exists():
                    print("penstock said last:\n" + "\n".join(log.read_text().splitlines()[-15:]))
            report()
        texts = {kind: text for kind, text in texts.items() if text is not None}
        same = set(texts.values())
        check(f"greedy answers of {', '.join(sorted(texts))} are the same", len(same) == 1, texts)
    finally:
        for log in work.rglob("*.log") if logs else []:
            (logs / log.parent.relative_to(work)).mkdir(parents=True, exist_ok=True)
            shutil.copy(log, logs / log.relative_to(work))
        shutil.rmtree(work)
    print(f"\n{len(failures)} failed" + "".join(f"\n  {name}" for name in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    import check  # check_sglang.py adds to the table of that module; this one is __main__

    sys.exit(check.main(*sys.argv[1:]))

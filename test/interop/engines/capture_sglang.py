"""Records what a real SGLang answers and publishes, for the test of its imitation (internal/enginemock).

    DIR/bin/python capture_sglang.py DIR MODEL OUT

DIR is a directory of install.sh, MODEL one of make_model.py. OUT/sglang-VERSION.json has one record for each request:
what was asked, the status, the fields of the answer with the kinds of their values, the cached tokens, and the events that
came with it. Names of blocks are numbered in the order in which they first appear; a name that is there again has its number.
"""

import json
import pathlib
import struct
import sys
import tempfile
import time

import msgspec
import servers
import zmq

PAGE = 16
QUIET = 1.0  # seconds without a message after which a request's events are all there


def prompt(seed, length):
    """Token ids that differ by seed and never are special ones."""
    return [256 + (seed * 7919 + i * i * 31 + i * 17) % 1400 for i in range(length)]


def generate(tokens, limit=4, **fields):
    body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": limit, "temperature": 0, "ignore_eos": True}}
    return ("POST", "/generate", body | fields)


def conversation(content, **fields):
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 2, "temperature": 0} | fields


PLAIN, BRANCH = prompt(1, 80), prompt(1, 64) + prompt(2, 40)
POET = {"lora_name": "ad", "lora_path": ""}  # the path is filled in
REQUESTS = [
    ("GET", "/model_info", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/loads?include=core", None),
    ("GET", "/ready", None),
    ("GET", "/health", None),
    generate(PLAIN),
    generate(PLAIN),
    generate(PLAIN, cache_salt="A"),
    generate(PLAIN, cache_salt="A"),
    generate(PLAIN, extra_key="B"),
    generate(PLAIN, extra_key="B"),
    generate(PLAIN, cache_salt="A", extra_key="B"),
    generate(PLAIN),
    generate(BRANCH),
    generate(PLAIN, lora_path="ad"),
    generate(PLAIN, lora_path="ad"),
    ("POST", "/unload_lora_adapter", {"lora_name": "ad"}),
    generate(PLAIN, lora_path="ad"),
    generate(PLAIN, nonsense=1),
    generate(PLAIN, lora_path="nobody"),
    ("POST", "/generate", {"sampling_params": {}}),
    ("POST", "/tokenize", {"prompt": "Where does the water go?"}),
    ("POST", "/tokenize", {"messages": [{"role": "user", "content": "hi there"}]}),
    ("POST", "/tokenize", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]}]}),
    ("POST", "/tokenize", {"model": "tiny"}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": prompt(3, 40), "max_tokens": 2, "temperature": 0}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": prompt(3, 40), "max_tokens": 2, "temperature": 0, "cache_salt": "C"}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": prompt(3, 40), "max_tokens": 2, "temperature": 0, "cache_salt": "C"}),
    ("POST", "/v1/chat/completions", conversation("hi there you", return_token_ids=True)),
    ("POST", "/flush_cache", {}),
    generate(PLAIN),
]


def kinds(value, path="", out=None):
    """The fields of a value and the kinds of what they hold, as the imitation's own test writes them."""
    out = {} if out is None else out
    kind = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}[type(value)]
    out[path] = "|".join(sorted({kind} | set(out.get(path, kind).split("|"))))
    for key, inner in value.items() if isinstance(value, dict) else ():
        kinds(inner, f"{path}.{key}", out)
    for inner in value if isinstance(value, list) else ():
        kinds(inner, path + "[]", out)
    return out


class Names:
    """Numbers names in the order in which they appear."""

    def __init__(self):
        self.numbers = {}

    def number(self, name):
        return None if name is None else self.numbers.setdefault(name, len(self.numbers) + 1)


FIELDS = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"]


def event(raw, names):
    """An event, with the order of its fields where it is a map."""
    if isinstance(raw, dict):
        fields, form = raw, list(raw)
    else:
        order = FIELDS if raw[0] == "BlockStored" else ["type", "block_hashes", "medium"]
        fields, form = dict(zip(order, raw)), len(raw)
    out = fields | {"form": form}
    if "block_hashes" in out:
        out["block_hashes"] = [names.number(name) for name in out["block_hashes"]]
    if "parent_block_hash" in out:
        out["parent_block_hash"] = names.number(out["parent_block_hash"])
    if out.get("lora_id") is None:
        out.pop("lora_id", None)
    return {key: value for key, value in out.items() if value is not None}


def answer(url, method, path, body):
    status, data = servers.call(url + path, body, method=method)
    try:
        said = json.loads(data)
    except ValueError:
        said = None
    record = {"method": method, "path": path, "body": body, "status": status, "fields": kinds(said) if said is not None else {}}
    if isinstance(said, dict):
        usage = said.get("usage") or {}
        cached = said.get("meta_info", {}).get("cached_tokens", (usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
        record |= {"cached_tokens": cached} if cached is not None else {}
        record |= {"tokens": said["tokens"]} if path == "/tokenize" and "tokens" in said else {}
    return record


def main(directory, model, out):
    version = (pathlib.Path(directory) / "version").read_text().strip()
    adapter = str(pathlib.Path(model).resolve() / "adapter")
    with tempfile.TemporaryDirectory() as work:
        arguments = ("--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "8", "--lora-paths", f"ad={adapter}")
        server = servers.sglang(directory, model, work, page=PAGE, arguments=arguments)
        try:
            server.start().ready(600)
            record = capture(server) | {"engine": "sglang", "version": version, "block_size": PAGE}
        finally:
            server.stop()
    path = pathlib.Path(out) / f"sglang-{version}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{path}: {len(record['requests'])} requests")


def capture(server):
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(server.events)
    time.sleep(1)  # a subscription has no answer
    names, records = Names(), []
    for method, path, body in REQUESTS:
        one = answer(server.url, method, path, body)
        one["events"] = []
        while socket.poll(int(QUIET * 1000)):
            one["events"] += [event(e, names) for e in msgspec.msgpack.decode(socket.recv_multipart()[2])[1]]
        records.append(one)
        print(method, path, one["status"], one.get("cached_tokens", ""), len(one["events"]), "events", flush=True)
    info = json.loads(servers.call(server.url + "/server_info")[1])
    return {"kv_events": kinds(info.get("kv_events")), "announces": "kv_events" in info, "requests": records} | replayed(server)


def replayed(server):
    """The first and the last answer to a request for all batches."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(server.replay)
    socket.send_multipart([b"", struct.pack(">Q", 0)])
    answers = []
    while socket.poll(5000):
        answers.append(socket.recv_multipart())
        if answers[-1][-2] == b"\xff" * 8:
            break
    first = msgspec.msgpack.decode(answers[0][-1])[1][0]
    return {"replay_frames": [len(answers[0]), len(answers[-1])], "first_event": first["type"] if isinstance(first, dict) else first[0]}


if __name__ == "__main__":
    main(*sys.argv[1:])

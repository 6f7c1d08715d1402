"""Records what real engines say: vLLM's KV events, and the HTTP answers of vLLM
and llama.cpp.

    DIR/bin/python capture.py DIR MODEL OUT [events|http]
    DIR/bin/python capture.py DIR PICTURES OUT pictures
    DIR/bin/python capture.py DIR PICTURES OUT encodings

DIR is a directory of install.sh and MODEL one of make_model.py; PICTURES is install.sh's
directory of that name, with which OUT/pictures.json is recorded, or in OUT/producer and OUT/consumer
the answers of two which share encoder outputs (--ec-transfer-config). Each scenario of
vLLM's events becomes one file OUT/events/NAME.json with the frames as they came
and, in order, what was asked and answered. OUT/http has answers as an adapter sees
them: a line with the status and what was asked, its body, an empty line, the answer.
Those named ask-… have a prompt of their own each, by which a test finds the answer.
"""

import base64
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import time

import make_vision_model
import pictures
import servers

try:
    import zmq
except ImportError:  # llama.cpp has no events, and its directory no ZeroMQ
    zmq = None

BLOCK = 32
# A grey JPEG of 56 x 56 pixels: a frame of a sequence.
FRAME = (
    "/9j/2wCEABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6QBHB4e"
    "KCMoTisrTqRuXW6kpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpP/AAAsIADgAOAEBEQD/"
    "xADSAAABBQEBAQEBAQAAAAAAAAAAAQIDBAUGBwgJCgsQAAIBAwMCBAMFBQQEAAABfQECAwAEEQUSITFBBhNRYQcicRQygZGhCCNC"
    "scEVUtHwJDNicoIJChYXGBkaJSYnKCkqNDU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6g4SFhoeIiYqSk5SV"
    "lpeYmZqio6Slpqeoqaqys7S1tre4ubrCw8TFxsfIycrS09TV1tfY2drh4uPk5ebn6Onq8fLz9PX29/j5+v/aAAgBAQAAPwDmaKKK"
    "KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK//Z"
)
QUIET = 1.0  # seconds without a frame after which a scenario's events are all there


def prompt(seed, length):
    """Token ids that differ by seed and never are special ones."""
    return [256 + (seed * 7919 + i * i * 31 + i * 17) % 1400 for i in range(length)]


class Recorder:
    """A subscriber that keeps every frame since the last take."""

    def __init__(self, endpoint):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(endpoint)

    def take(self):
        frames, last = [], time.monotonic()
        while time.monotonic() - last < QUIET:
            if self.socket.poll(100):
                frames.append(self.socket.recv_multipart())
                last = time.monotonic()
        return frames


def replayed(endpoint, start):
    """Every answer to a request for batches from start on, with its delimiter."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send_multipart([b"", struct.pack(">Q", start)])
    answers = []
    while socket.poll(5000):
        frames = socket.recv_multipart()
        answers.append(frames)
        if frames[-2] == b"\xff" * 8:
            break
    socket.close(0)
    return answers


def text(frames):
    return [[base64.b64encode(f).decode() for f in message] for message in frames]


class Run:
    def __init__(self, server, version, out):
        self.server, self.version, self.out = server, version, out if server.name == "pictures" else out / "events"
        self.out.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(server.events)
        self.asked = []

    def complete(self, tokens, limit=1, batch=1, **fields):
        body = {"model": "tiny", "prompt": [tokens] * batch, "max_tokens": limit, "min_tokens": limit}
        body |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True} | fields
        status, answer = servers.call(self.server.url + "/v1/completions", body)
        if status != 200:
            raise servers.Failed(f"{status}: {answer[:500]}")
        answer = json.loads(answer)
        details = answer["usage"].get("prompt_tokens_details") or {}
        for choice in answer["choices"]:
            self.asked.append(
                {
                    "model": body["model"],
                    "salt": body.get("cache_salt", ""),
                    "prompt": tokens,
                    "generated": choice["token_ids"],
                    "cached_tokens": details.get("cached_tokens") if batch == 1 else None,
                }
            )

    def save(self, name, note):
        record = {
            "engine": "vllm",
            "version": self.version,
            "scenario": name,
            "note": note,
            "block_size": BLOCK,
            "asked": self.asked,
            "frames": text(self.recorder.take()),
        }
        self.asked = []
        write(self.out / f"{name}.json", record)
        print(f"{name}: {len(record['frames'])} messages")
        return record


def write(path, record):
    path.write_text(json.dumps(record, separators=(",", ":")).replace('],"', '],\n"').replace("],[", "],\n[") + "\n")


def events(run):
    """The scenarios of one engine with a cache of few blocks."""
    a, b = prompt(1, 3 * BLOCK + 4), prompt(2, 2 * BLOCK + 5)
    run.complete(prompt(0, 3))  # the first message tells that the subscription holds
    run.recorder.take()

    run.complete(a, limit=40)
    run.save("cold", "a prompt of three blocks and four tokens, and 40 tokens that fill one more")
    run.complete(a)
    run.save("hot", "the same prompt again: its blocks are reused and not announced")
    run.complete(a + prompt(3, 2 * BLOCK))
    run.save("longer", "the prompt, grown by two blocks")
    run.complete(a, cache_salt="tenant-one")
    run.save("salt", "the first prompt with a cache_salt: other blocks with the same tokens")
    run.complete(b, 40, batch=2)
    run.save("twice", "two equal prompts at once: both fill a block with the same generated tokens")
    for i in range(8):
        run.complete(prompt(10 + i, 4 * BLOCK + 1))
    run.save("eviction", "more prompts than the cache has blocks")
    status, _ = servers.call(run.server.url + "/reset_prefix_cache", b"", method="POST")
    run.complete(b)
    run.save("reset", f"the cache was reset (HTTP {status}), then one prompt")

    record = {"engine": "vllm", "version": run.version, "scenario": "replay", "block_size": BLOCK}
    record["note"] = "every batch from sequence number 4 on, and the end marker"
    record["start"], record["replayed"] = 4, text(replayed(run.server.replay, 4))
    write(run.out / "replay.json", record)
    print(f"replay: {len(record['replayed'])} messages")

    run.server.kill()
    run.server.start().ready()
    run.recorder.take()
    run.complete(prompt(0, 3))  # a subscriber is slow to come back; this message may be lost
    run.recorder.take()
    run.complete(a)
    run.save("restart", "the engine was killed and started over; then the first prompt")


def show(run, name, *parts):
    """A conversation: texts, and pictures as (width, height, seed). Keeps what the engine says of its prompt."""
    content, shown = [], []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
            continue
        number = (part[0] << 40 | part[1] << 20 | part[2]) * 0x9E3779B97F4A7C15 % 2**64
        uuid = f"{number:016x}" + "0" * 48
        if len(part) > 3:
            uuid = part[3]
        content.append({"type": "image_url", "image_url": {"url": pictures.data_uri(*part[:3])}, "uuid": uuid})
        shown.append({"width": part[0], "height": part[1], "uuid": uuid})
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
    rendered = json.loads(servers.call(run.server.url + "/v1/chat/completions/render", body | {"mm_payload": "none"})[1])
    tokens, places = rendered["token_ids"], rendered["features"]["mm_placeholders"]["image"]
    prompt, at = [], 0
    for place in places:  # what the template wrote: one token for each picture
        prompt += tokens[at : place["offset"]] + tokens[place["offset"] : place["offset"] + 1]
        at = place["offset"] + place["length"]
    prompt += tokens[at:]
    status, answer = servers.call(
        run.server.url + "/v1/chat/completions",
        body | {"max_tokens": 40, "min_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True},
    )
    if status != 200:
        raise servers.Failed(f"{status}: {answer[:500]}")
    answer = json.loads(answer)
    run.asked.append(
        {
            "name": name,
            "prompt": prompt,
            "pictures": shown,
            "tokens": answer["usage"]["prompt_tokens"],
            "places": places,
            "generated": answer["choices"][0]["token_ids"],
            "cached_tokens": (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens"),
        }
    )


def vision(run):
    before, after = "What does this show? ", "Say it in a few words that everybody here knows. " * 2
    cat = "c705ea9eafcdcde9" + "0" * 48
    show(run, "first", before, (112, 84, 1, cat), after)
    run.recorder.take()  # the first message tells that the subscription holds
    servers.call(run.server.url + "/reset_prefix_cache", b"", method="POST")
    run.asked = []
    show(run, "cold", before, (112, 84, 1, cat), after)
    show(run, "hot", before, (112, 84, 1, cat), after)
    show(run, "another of the same size", before, (112, 84, 2), after)
    for width, height in pictures.SIZES:
        show(run, f"{width} x {height}", before, (width, height, 3), after)
    show(run, "two side by side", (112, 112, 4), (280, 140, 5), after)
    show(run, "the same two, the other way round", (280, 140, 5), (112, 112, 4), after)
    show(run, "one twice, and text between", (84, 84, 6), after, (84, 84, 6), after)
    show(run, "ten", *[(56 + 28 * i, 56, 7) for i in range(10)], after)
    run.save("pictures", "a small Qwen2-VL: conversations that show pictures, named by the client")


def adapters(run):
    a = prompt(1, 2 * BLOCK + 4)
    run.complete(prompt(0, 3))
    run.recorder.take()
    run.complete(a)
    run.complete(a, model="ad")
    run.save("adapter", "a prompt for the model and the same for a LoRA adapter of it")


def binary(run):
    run.complete(prompt(0, 3))
    run.recorder.take()
    run.complete(prompt(1, 3 * BLOCK + 4))
    run.save("binary", "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0: hashes are bytes")


def answers(server, directory, model, out, requests, keep=()):
    """Records one answer for each of requests, without paths of this machine."""
    out.mkdir(parents=True, exist_ok=True)
    for name, (path, body) in requests.items():
        status, answer = servers.call(server.url + path, body)
        said = answer.decode().replace(str(model), "/models/tiny").replace(str(directory), "/opt/engine")
        if name == "metrics" and keep:  # 60 KB, of which adapters read a few lines
            said = "\n".join(l for l in said.splitlines() if any(k in l for k in keep)) + "\n"
        record = f"{status} {'POST' if body is not None else 'GET'} {path}\n"
        record += (body.decode() if isinstance(body, bytes) else json.dumps(body) if body else "") + "\n\n"
        (out / f"{name}.txt").write_text(record + said)
        print(f"{name}: {status}")


def uuid(number):
    return f"{number:016x}" + "0" * 48


def encodings(server, directory, model, out):
    """What vLLM answers which encodes for others, or takes what others encoded."""
    first, second = ({"type": "image_url", "image_url": {"url": pictures.data_uri(*of)}, "uuid": uuid(of[2])} for of in ((112, 84, 1), (84, 84, 2)))
    text = {"type": "text", "text": "what is this"}
    film = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{FRAME},{FRAME}"}, "uuid": uuid(6)}

    def chat(*content, limit=1, **fields):
        return ("/v1/chat/completions", {"model": "tiny", "max_tokens": limit, "temperature": 0, "messages": [{"role": "user", "content": content}]} | fields)

    nothing = {"type": "image_url", "image_url": None}
    given = {"ec_transfer_params": {uuid(1): {"item_indices": [0], "metadata": {"image_grid_thw": [1, 6, 8]}}}}
    requests = {
        "one": chat(first, text),
        "again": chat(first, text),
        "two": chat(first, text, second),
        "twice": chat(first, text, first),
        "unnamed": chat({"type": "image_url", "image_url": first["image_url"]}, text),
        "alone": chat(first),
        "film": chat(film, text),
        "salted": chat(second, text, cache_salt="tenant"),
        "five": chat(first, text, limit=5),
        "stream": chat(first, text, stream=True),
        "text": chat(text, limit=3),
        "given": chat(first, text, **given),
        "given-text": chat(text, **given),
        "name": chat(nothing | {"uuid": uuid(1)}, text),
        "name-unknown": chat(nothing | {"uuid": uuid(99)}, text),
        "broken": chat({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}, "uuid": uuid(98)}, text),
        "completion": ("/v1/completions", {"model": "tiny", "prompt": prompt(1, 20), "max_tokens": 3, "temperature": 0, "return_token_ids": True}),
        "generate": ("/inference/v1/generate", {"model": "tiny", "token_ids": prompt(1, 20), "sampling_params": {"max_tokens": 3, "temperature": 0}}),
        "metrics": ("/metrics", None),
    }
    answers(server, directory, model, out, requests, ("vllm:cache_config", "vllm:mm_cache", "vllm:num_requests_running"))


def with_encodings(directory, model, work, out, arguments):
    """A producer and then a consumer of encoder outputs, which are files in a directory."""

    def server(role):
        config = {"ec_connector": "ECExampleConnector", "ec_role": f"ec_{role}", "ec_connector_extra_config": {"shared_storage_path": str(work / "store")}}
        given = (*arguments, "--ec-transfer-config", json.dumps(config))
        return servers.vllm(directory, work / "vision", work, role, arguments=given, env={"PYTHONPATH": str(model)})

    return [(server(role), lambda s, role=role: encodings(s, directory, work / "vision", out / role)) for role in ("producer", "consumer")]


def asks_vllm(server):
    """What an adapter asks for, by both ways to ask."""
    probe = [1 + i % 64 for i in range(2 * BLOCK + 1)]
    servers.call(server.url + "/v1/completions", {"model": "tiny", "prompt": probe, "max_tokens": 1})
    hot, stopped = prompt(20, 100), prompt(22, 50)
    first = json.loads(servers.call(server.url + "/v1/completions", {"model": "tiny", "prompt": hot, "max_tokens": 1})[1])
    assert first["usage"]["prompt_tokens"] == 100
    body = {"model": "tiny", "prompt": stopped, "max_tokens": 3, "temperature": 0, "return_token_ids": True}
    third = json.loads(servers.call(server.url + "/v1/completions", body)[1])["choices"][0]["token_ids"][2]
    cases = {
        "probe": (probe, 1, {}),
        "hot": (hot, 6, {}),
        "cold": (prompt(21, 100), 6, {}),
        "stop": (stopped, 6, {"stop_token_ids": [third]}),
        "eos": (prompt(23, 40), 6, {"logit_bias": {"1715": 100}}),
        "logprobs": (prompt(24, 40), 3, {"logprobs": 2}),
    }
    requests = {}
    for name, (tokens, limit, sampling) in cases.items():
        sampling = {"temperature": 0, "max_tokens": limit} | sampling
        stream = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}}
        by_text = stream | sampling | {"prompt": tokens, "return_token_ids": True, "return_tokens_as_token_ids": True}
        requests[f"ask-{name}"] = ("/v1/completions", by_text)
        if name == "cold":  # for the other way it must be so again
            tokens = prompt(25, 100)
        by_token = stream | {"token_ids": tokens, "sampling_params": sampling}
        requests[f"ask-{name}-generate"] = ("/inference/v1/generate", by_token)
    return requests


def asks_llamacpp(server):
    """What an adapter asks for."""
    servers.call(server.url + "/completion", {"prompt": prompt(20, 100), "n_predict": 1})
    cases = {
        "hot": (prompt(20, 100), 6, {"id_slot": 0}),
        "cold": (prompt(26, 100), 6, {"cache_prompt": False}),
        "eos": (prompt(23, 40), 6, {"logit_bias": [[1715, 100]]}),
        "logprobs": (prompt(24, 40), 3, {"n_probs": 2}),
        "probe": ([1, 2], 1, {}),
    }
    requests = {}
    for name, (tokens, limit, fields) in cases.items():
        body = {"prompt": tokens, "n_predict": limit, "temperature": 0, "cache_prompt": True, "return_tokens": True}
        requests[f"ask-{name}"] = ("/completion", body | {"stream": True, "return_progress": True} | fields)
    return requests


def http_vllm(server, directory, model, out):
    p = prompt(1, 3 * BLOCK + 4)
    base = {"model": "tiny", "prompt": p, "temperature": 0, "max_tokens": 4, "return_token_ids": True}
    generate = {"model": "tiny", "token_ids": p, "stream": True, "stream_options": {"include_usage": True}}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    tokens = json.loads(servers.call(server.url + "/v1/completions", base | {"max_tokens": 3})[1])
    stop = tokens["choices"][0]["token_ids"][2]
    greedy = {"temperature": 0, "max_tokens": 4}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    requests = {
        "models": ("/v1/models", None),
        "version": ("/version", None),
        "completion-cold": ("/v1/completions", base | {"prompt": prompt(9, 40)}),
        "completion": ("/v1/completions", base),
        "completion-stream": ("/v1/completions", base | stream),
        "completion-stop-token": ("/v1/completions", base | stream | {"stop_token_ids": [stop]}),
        "completion-eos": ("/v1/completions", base | stream | {"logit_bias": {"1715": 100}}),
        "completion-two": ("/v1/completions", base | stream | {"n": 2, "temperature": 1, "seed": 1}),
        "completion-logprobs": ("/v1/completions", base | stream | {"logprobs": 2, "max_tokens": 2}),
        "chat-stream": ("/v1/chat/completions", chat | stream | greedy),
        "generate": ("/inference/v1/generate", generate | {"stream": False, "sampling_params": greedy}),
        "generate-stream": ("/inference/v1/generate", generate | {"sampling_params": greedy}),
        "generate-stop-token": ("/inference/v1/generate", generate | {"sampling_params": greedy | {"stop_token_ids": [stop]}}),
        "generate-logprobs": ("/inference/v1/generate", generate | {"sampling_params": greedy | {"logprobs": 2}}),
        "tokenize": ("/tokenize", {"model": "tiny", "prompt": "hello world"}),
        "tokenize-chat": ("/tokenize", chat),
        "detokenize": ("/detokenize", {"model": "tiny", "tokens": [300, 301]}),
        "render-chat": ("/v1/chat/completions/render", chat),
        "error-model": ("/v1/completions", base | {"model": "nope"}),
        "error-vocabulary": ("/v1/completions", base | {"prompt": [99999]}),
        "error-too-long": ("/v1/completions", base | {"prompt": prompt(1, 520)}),
        "error-sampling": ("/v1/completions", base | {"temperature": -3}),
        "error-greedy-two": ("/v1/completions", base | {"n": 2}),
        "error-json": ("/v1/completions", b"{bad"),
        "error-path": ("/nope", None),
        "metrics": ("/metrics", None),
    }
    requests |= asks_vllm(server)
    parts = ("num_requests", "kv_cache", "gpu_cache", "prefix_cache", "cache_config", "lora", "prompt_tokens", "generation_tokens")
    answers(server, directory, model, out / "http", requests, tuple("vllm:" + part for part in parts))


def http_llamacpp(server, directory, model, out):
    p = prompt(1, 100)
    base = {"prompt": p, "temperature": 0, "n_predict": 4, "return_tokens": True, "cache_prompt": True}
    stream = {"stream": True}
    first = json.loads(servers.call(server.url + "/completion", base)[1])
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    fields = {"response_fields": ["content", "tokens", "stop", "stop_type", "timings", "tokens_evaluated", "truncated"]}
    requests = {
        "props": ("/props", None),
        "models": ("/v1/models", None),
        "slots": ("/slots", None),
        "health": ("/health", None),
        "completion-cold": ("/completion", base | {"prompt": prompt(2, 90)}),
        "completion": ("/completion", base),
        "completion-stream": ("/completion", base | stream),
        "completion-fields": ("/completion", base | stream | fields),
        "completion-grown": ("/completion", base | fields | {"prompt": p + first["tokens"] + prompt(3, 20)}),
        "completion-branch": ("/completion", base | fields | {"prompt": p[:60] + prompt(4, 30)}),
        "completion-eos": ("/completion", base | stream | fields | {"logit_bias": [[1715, 100]]}),
        "completion-progress": ("/completion", base | stream | fields | {"return_progress": True, "timings_per_token": True}),
        "completion-two": ("/completion", base | stream | fields | {"n_cmpl": 2, "temperature": 1, "seed": 1}),
        "completion-logprobs": ("/completion", base | stream | fields | {"n_probs": 2, "n_predict": 2}),
        "completion-slot": ("/completion", base | fields | {"id_slot": 1}),
        "lora-adapters": ("/lora-adapters", None),
        "openai-completion": ("/v1/completions", {"prompt": p, "max_tokens": 4, "temperature": 0}),
        "openai-chat-stream": ("/v1/chat/completions", chat | stream | {"max_tokens": 3, "temperature": 0, "stream_options": {"include_usage": True}}),
        "tokenize": ("/tokenize", {"content": "hello world"}),
        "tokenize-special": ("/tokenize", {"content": "<|user|>hello", "add_special": True, "parse_special": True}),
        "detokenize": ("/detokenize", {"tokens": [300, 301]}),
        "apply-template": ("/apply-template", chat),
        "error-vocabulary": ("/completion", base | {"prompt": [99999]}),
        "error-empty": ("/completion", base | {"prompt": []}),
        "error-too-long": ("/completion", base | {"prompt": prompt(1, 520)}),
        "error-json": ("/completion", b"{bad"),
        "error-path": ("/nope", None),
        "metrics": ("/metrics", None),
    }
    requests |= asks_llamacpp(server)
    answers(server, directory, model, out / "http", requests)


def main(directory, model, out, only=""):
    directory, model, out = pathlib.Path(directory), pathlib.Path(model).resolve(), pathlib.Path(out)
    version = (directory / "version").read_text().strip()
    work = pathlib.Path(tempfile.mkdtemp())
    scale_out = ("--enable-scale-out",) if version.split(".")[:2] >= ["0", "30"] else ()
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"ad={model}/adapter")

    def recorded(scenario):
        return lambda server: scenario(Run(server, version, out))

    if only == "pictures":
        make_vision_model.main(work / "vision")
        shutil.copy(work / "vision/model/config.json", out)
        shutil.copy(work / "vision/model/preprocessor_config.json", out)
        runs = [(servers.vllm(directory, work / "vision", work, "pictures", arguments=scale_out, env={"PYTHONPATH": str(model)}), recorded(vision))]
    elif only == "encodings":
        make_vision_model.main(work / "vision")
        runs = with_encodings(directory, model, work, out, scale_out)
    elif (directory / "llama-server").exists():
        runs = [(servers.llamacpp(directory, model, work, context=512), lambda server: http_llamacpp(server, directory, model, out))]
    else:
        runs = [
            (servers.vllm(directory, model, work, "events", blocks=24, context=512), recorded(events)),
            (servers.vllm(directory, model, work, "adapter", arguments=lora), recorded(adapters)),
            (servers.vllm(directory, model, work, "binary", env={"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"}), recorded(binary)),
            (servers.vllm(directory, model, work, "http", context=512, arguments=scale_out), lambda server: http_vllm(server, directory, model, out)),
        ]
    if only in ("events", "http"):
        runs = [r for r in runs if (r[0].name in ("http", "llamacpp")) == (only == "http")]
    try:
        for server, scenario in runs:
            try:
                server.start().ready()
                scenario(server)
            except servers.Failed as e:
                print(f"{server.name}: FAILED: {e}")
            finally:
                server.stop()
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main(*sys.argv[1:])

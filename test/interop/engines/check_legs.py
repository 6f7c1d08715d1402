"""Holds Penstock in front of real vLLM which hand prompts over: NixlConnector on a CPU.

It needs a machine which is not starved: a vLLM gives up a handshake with another one after 5 s, so that its decode leg
fails and the prompt is computed a second time, and a worker whose idle engine has no token after 3 s is not ready. What
the processes say of a failed check is printed with it.

What it is to prove, with three engines of the same weights (one which computes prompts, two which decode):

    the answers by two engines are those of one, cold and hot, also of sampled requests and of a request with a salt
    the blocks moved over NIXL, by the metrics of the decode engine: vllm:nixl_bytes_transferred_sum
    the usage has the tokens which the prefill engine had cached
    after the death of a decode engine in the middle of an answer the other one goes on, with a new prefill
    after the death of the prefill engine the decode engines compute prompts themselves
"""

import json
import pathlib
import re
import subprocess
import time

import check
import servers
from check import stream, until, whole, words

BLOCK = 32


def connected(directory, nixl, model, work, name):
    """A vLLM with NixlConnector. Each has a side channel of its own."""
    (side,) = servers.free_ports(1)
    config = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    return servers.vllm(
        directory, model, work, name, block=BLOCK, arguments=["--kv-transfer-config", json.dumps(config)],
        env={"PYTHONPATH": str(nixl), "UCX_TLS": "tcp,self,sm", "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)},
    )  # fmt: skip


class Process:
    """A process of Penstock which says on its first line where it is."""

    def __init__(self, binary, work, name, *arguments):
        self.name, self.log = name, work / (name + ".log")
        command = [binary, *arguments, "--json", "--log-level", "info,worker=debug"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)
        line = self.process.stdout.readline()
        if not line:
            raise servers.Failed(f"{name} did not start:\n" + self.log.read_text(errors="replace")[-2000:])
        self.started = json.loads(line)

    def calls(self):
        """Calls which this worker has finished: prefill legs, for example. Questions to its engine are none."""
        return len(re.findall(r" msg=call ", self.log.read_text(errors="replace")))

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)


def metric(engine, name):
    """The sum of an engine's series of a name."""
    lines = servers.call(engine.url + "/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))


def moved(engines):
    return sum(metric(e, "vllm:nixl_bytes_transferred_sum") for e in engines)


def explain(url, ours, engines):
    """Prints what the processes say, so that the cause of a failed check can be found."""
    print("    load of the machine:", pathlib.Path("/proc/loadavg").read_text().strip())
    try:
        status, health = servers.call(url + "/health", timeout=20)
        print(f"    health of the frontend: {status} {health.decode()[:3000].strip()}")
        counted = servers.call(url + "/metrics", timeout=20)[1].decode()
        print("    " + "\n    ".join(re.findall(r"^penstock_frontend_(?:legs|migrations)_total.*", counted, re.M)))
    except OSError as e:
        print("    the frontend does not answer:", e)
    for p in ours:
        said = re.findall(r".*level=(?:WARN|ERROR)(?!.*no_kv_events).*", p.log.read_text(errors="replace"))
        print("".join(f"    {p.name}: {line}\n" for line in said[-12:]), end="")
    for e in engines:
        said = re.findall(r".*(?:NIXL transfer failure|KV load failure|expired KV blocks|Error: ).*", e.log.read_text(errors="replace"))
        print("".join(f"    {e.name}: {line[:400]}\n" for line in said[-8:]), end="")
        try:
            counted = servers.call(e.url + "/metrics", timeout=20)[1].decode()
            print(f"    {e.name}:", *re.findall(r"^vllm:((?:nixl_num|num_requests_(?:running|waiting))\w*)\{.*\} (\S+)", counted, re.M))
        except OSError as e2:
            print(f"    {e.name} does not answer: {e2}")
    print(end="", flush=True)


def ask(url, prompt, limit=24, **more):
    """A completion: its text and its cached tokens."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": limit, "temperature": 0, "ignore_eos": True} | more
    status, answer = servers.call(url + "/v1/completions", body, timeout=120)
    if status != 200:
        raise servers.Failed(f"HTTP {status}: {answer[:300]}")
    said = json.loads(answer)
    return whole(said["choices"][0]["text"]), (said["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def legs(binary, model, directory, work):
    engine = pathlib.Path((pathlib.Path(directory) / "engine").read_text().strip())
    work = pathlib.Path(work)
    prefill, one, two = (connected(engine, directory, model, work, name) for name in ("prefill", "decode1", "decode2"))
    alone = servers.vllm(engine, model, work, "alone", block=BLOCK)
    engines, ours = [prefill, one, two, alone], []

    def launch(name, *arguments):
        p = Process(binary, work, name, *arguments)
        ours.append(p)
        return p

    url = None

    def expect(name, good, detail=""):
        if not check.check(name, good, detail) and len(check.failures) <= 3:
            explain(url, ours, engines)

    try:
        for e in engines:
            e.start()
        for e in engines:
            e.ready(1200)
        # Discovery by a directory: the processes find each other without NATS.
        prefiller = None
        here = ["--discovery", "file", "--discovery-dir", str(work / "fleet")]
        for name, e, role in (("prefill", prefill, "prefill"), ("decode1", one, "decode"), ("decode2", two, "decode")):
            given = f"vllm={e.url},kv-connector=nixl"
            p = launch("worker-" + name, "worker", *here, "--role", role, "--model-path", f"{model}/model", "--engine", given)
            prefiller = p if role == "prefill" else prefiller
        url = launch("frontend", "frontend", *here, "--http-addr", "127.0.0.1:0").started["url"]
        check.check("the model is served", until(lambda: servers.call(url + "/v1/models")[0] == 200 and b"tiny" in servers.call(url + "/v1/models")[1], 30))

        began = time.monotonic()
        ask(alone.url, words(999, 2), 1)
        print(f"    a token of an idle engine takes {time.monotonic() - began:.2f} s", flush=True)
        for i in range(4):
            prompt = words(1000 + i, 200)
            want, _ = ask(alone.url, prompt)
            before, legs_before = moved([one, two]), prefiller.calls()
            got, cached = ask(url, prompt)
            expect(f"prompt {i}, cold: the text is that of one engine", got == want, (got, want))
            expect(f"prompt {i}, cold: its blocks were moved", moved([one, two]) > before, (before, moved([one, two])))
            expect(f"prompt {i}, cold: nothing was cached", cached == 0, cached)
            # A second one follows a decode leg which failed.
            until(lambda: prefiller.calls() > legs_before, 5)
            expect(f"prompt {i}, cold: it was computed once", prefiller.calls() == legs_before + 1, prefiller.calls() - legs_before)
        more = words(1000, 200) + " and " + words(7, 100)
        want, _ = ask(alone.url, more)
        got, cached = ask(url, more)
        expect("a prompt whose beginning the prefill engine has: the text is that of one engine", got == want, (got, want))
        expect("and the usage says what it had", cached >= BLOCK, cached)
        sampled = {"temperature": 0.8, "seed": 7}
        expect("a sampled answer is that of one engine", ask(url, words(1010, 150), **sampled)[0] == ask(alone.url, words(1010, 150), **sampled)[0])
        expect("no transfer failed", metric(one, "vllm:nixl_num_failed_transfers_total") + metric(two, "vllm:nixl_num_failed_transfers_total") == 0)

        # A decode engine dies in the middle of an answer. Of this prompt's 300 tokens the first two choices are nowhere
        # closer than 0.003 in log-probability, so that a prefill which takes the place of decode steps changes none.
        body = {"model": "tiny", "prompt": words(1026, 200), "max_tokens": 300, "temperature": 0, "ignore_eos": True}
        want, _ = ask(alone.url, body["prompt"], 300)
        killed = []

        def kill(count, worker):
            if count >= 4 and not killed:
                killed.append(max((one, two), key=lambda e: metric(e, "vllm:num_requests_running")))
                killed[0].kill()

        got, last = stream(url, "/v1/completions", body, kill)
        expect("a decode engine died in the middle of an answer", len(killed) == 1)
        got = whole(got)
        expect("its answer is whole", got == want and last["usage"]["completion_tokens"] == 300, (got[:200], want[:200]))

        prefill.kill()
        for i in range(4):
            prompt = words(1030 + i, 200)
            got, want = ask(url, prompt)[0], ask(alone.url, prompt)[0]
            expect(f"without prefill engine, prompt {i}: the text is right", got == want, (got, want))
        for p in reversed(ours):
            check.check("penstock ends well", p.stop() == 0)
        ours.clear()
        return ask(alone.url, words(5, 60), 64)[0]
    except servers.Failed:
        if url:
            explain(url, ours, engines)
        raise
    finally:
        for p in reversed(ours):
            p.stop()
        for e in engines:
            e.stop()

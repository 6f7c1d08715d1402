"""Holds Penstock in front of real vLLM which hand prompts over: NixlConnector on a CPU.

IT DOES NOT PASS EVERY TIME. Of two runs beside other work one had a single wrong check: a text differed which a decode
engine computed alone, after the prefill engine was killed. In the other both decode workers were not ready after the
third request. Neither is understood, so "legs" is no part of what run.sh runs by default. Find out why, and delete this
paragraph.

What it is to prove, with three engines of the same weights (one which computes prompts, two which decode):

    the answers by two engines are those of one, cold and hot, also of sampled requests and of a request with a salt
    the blocks moved over NIXL, by the metrics of the decode engine: vllm:nixl_bytes_transferred_sum
    the usage has the tokens which the prefill engine had cached
    after the death of a decode engine in the middle of an answer the other one goes on, with a new prefill
    after the death of the prefill engine the decode engines compute prompts themselves
"""

import json
import pathlib
import subprocess

import check
import servers
from check import stream, until, words

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
        self.log = (work / (name + ".log")).open("wb")
        self.process = subprocess.Popen([binary, *arguments, "--json"], stdout=subprocess.PIPE, stderr=self.log, stdin=subprocess.DEVNULL)
        line = self.process.stdout.readline()
        if not line:
            raise servers.Failed(f"{name} did not start:\n" + (work / (name + ".log")).read_text(errors="replace")[-2000:])
        self.started = json.loads(line)

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)


def metric(engine, name):
    """The sum of an engine's series of a name."""
    lines = servers.call(engine.url + "/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))


def moved(engines):
    return sum(metric(e, "vllm:nixl_bytes_transferred_sum") for e in engines)


def ask(url, prompt, limit=24, **more):
    """A completion: its text and its cached tokens."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": limit, "temperature": 0, "ignore_eos": True} | more
    status, answer = servers.call(url + "/v1/completions", body, timeout=120)
    if status != 200:
        raise servers.Failed(f"HTTP {status}: {answer[:300]}")
    said = json.loads(answer)
    return said["choices"][0]["text"], (said["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


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

    try:
        for e in engines:
            e.start()
        for e in engines:
            e.ready(1200)
        # Discovery by a directory: the processes find each other without NATS.
        here = ["--discovery", "file", "--discovery-dir", str(work / "fleet")]
        for name, e, role in (("prefill", prefill, "prefill"), ("decode1", one, "decode"), ("decode2", two, "decode")):
            given = f"vllm={e.url},kv-connector=nixl"
            launch("worker-" + name, "worker", *here, "--role", role, "--model-path", f"{model}/model", "--engine", given)
        url = launch("frontend", "frontend", *here, "--http-addr", "127.0.0.1:0").started["url"]
        check.check("the model is served", until(lambda: servers.call(url + "/v1/models")[0] == 200 and b"tiny" in servers.call(url + "/v1/models")[1], 30))

        for i in range(4):
            prompt = words(1000 + i, 200)
            want, _ = ask(alone.url, prompt)
            before = moved([one, two])
            got, cached = ask(url, prompt)
            check.check(f"prompt {i}, cold: the text is that of one engine", got == want, (got, want))
            check.check(f"prompt {i}, cold: its blocks were moved", moved([one, two]) > before, (before, moved([one, two])))
            check.check(f"prompt {i}, cold: nothing was cached", cached == 0, cached)
        more = words(1000, 200) + " and " + words(7, 100)
        want, _ = ask(alone.url, more)
        got, cached = ask(url, more)
        check.check("a prompt whose beginning the prefill engine has: the text is that of one engine", got == want, (got, want))
        check.check("and the usage says what it had", cached >= BLOCK, cached)
        sampled = {"temperature": 0.8, "seed": 7}
        check.check("a sampled answer is that of one engine", ask(url, words(1010, 150), **sampled)[0] == ask(alone.url, words(1010, 150), **sampled)[0])
        check.check("no transfer failed", metric(one, "vllm:nixl_num_failed_transfers_total") + metric(two, "vllm:nixl_num_failed_transfers_total") == 0)

        # A decode engine dies in the middle of an answer.
        body = {"model": "tiny", "prompt": words(1020, 200), "max_tokens": 300, "temperature": 0, "ignore_eos": True}
        want, _ = ask(alone.url, body["prompt"], 300)
        killed = []

        def kill(count, worker):
            if count >= 4 and not killed:
                killed.append(max((one, two), key=lambda e: metric(e, "vllm:num_requests_running")))
                killed[0].kill()

        got, last = stream(url, "/v1/completions", body, kill)
        check.check("a decode engine died in the middle of an answer", len(killed) == 1)
        check.check("its answer is whole", got == want and last["usage"]["completion_tokens"] == 300, (got[:200], want[:200]))

        prefill.kill()
        for i in range(4):
            prompt = words(1030 + i, 200)
            got, want = ask(url, prompt)[0], ask(alone.url, prompt)[0]
            check.check(f"without prefill engine, prompt {i}: the text is right", got == want, (got, want))
        for p in reversed(ours):
            check.check("penstock ends well", p.stop() == 0)
        ours.clear()
        return ask(alone.url, words(5, 60), 64)[0]
    finally:
        for p in reversed(ours):
            p.stop()
        for e in engines:
            e.stop()

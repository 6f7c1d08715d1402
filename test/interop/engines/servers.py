"""Starts and stops real engines. Only the standard library is used."""

import json
import os
import pathlib
import re
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request


class Failed(Exception):
    pass


def free_ports(count):
    """Ports that were free a moment ago: all are open at once, so they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def free_ranges(count, size):
    """The first ports of ranges that were free a moment ago. They are below the ports that systems hand out, so
    that a slow engine finds them free when it comes to bind them."""
    firsts = []
    while len(firsts) < count:
        first = random.randrange(15000, 30000)
        held = []
        try:
            held = [socket.create_server(("127.0.0.1", first + i)) for i in range(size)]
            if not any(abs(first - other) < size for other in firsts):
                firsts.append(first)
        except OSError:
            pass
        for s in held:
            s.close()
    return firsts


def call(url, body=None, headers=None, timeout=60, method=None):
    """One request; returns the status and the body's bytes, also of errors."""
    data = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} | (headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read()


class Server:
    """A process in a group of its own, so that its children end with it."""

    def __init__(self, name, command, env, log, url, events=None, replay=None):
        self.name, self.command, self.env, self.log, self.url = name, command, env, pathlib.Path(log), url
        self.events, self.replay = events, replay
        self.process = None

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def ready(self, seconds=180):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")
            try:
                if call(self.url + "/health", timeout=5)[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.2)  # another process starts: there is nothing to wait on but its port
        raise Failed(f"{self.name} was not ready after {seconds} s:\n{self.tail()}")

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def tail(self, lines=15):
        """The end of the log, and the errors before it: an engine's own process tells the cause before its parent ends."""
        log = self.log.read_text(errors="replace").splitlines()
        causes = [line for line in log[:-lines] if re.search(r"\w(Error|Exception): ", line)]
        return "\n".join(causes[-5:] + log[-lines:])


def vllm(directory, model, work, name="vllm", blocks=256, block=32, context=2048, arguments=(), env=None):
    """A vLLM with KV events and replay, in a directory of install.sh."""
    directory, work = pathlib.Path(directory), pathlib.Path(work)
    port, replay = free_ports(2)
    home = work / (name + "-home")
    home.mkdir(exist_ok=True)
    # vLLM dials an endpoint for events unless it is a wildcard, of which others on the network
    # would see the port, or a path.
    endpoints = {"endpoint": f"ipc://{work}/{name}.events", "replay_endpoint": f"tcp://127.0.0.1:{replay}"}
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": ""} | endpoints
    command = [
        str(directory / "bin/python"), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(pathlib.Path(model) / "model"), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--seed", "0",
        "--block-size", str(block), "--max-model-len", str(context), "--num-gpu-blocks-override", str(blocks),
        "--max-num-seqs", "16", "--enable-prefix-caching", "--enable-prompt-tokens-details",
        "--kv-events-config", json.dumps(config), *arguments,
    ]  # fmt: skip
    environment = {
        "PATH": f"{directory}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    return Server(
        name, command, environment | (env or {}), work / (name + ".log"), f"http://127.0.0.1:{port}",
        endpoints["endpoint"], endpoints["replay_endpoint"],
    )  # fmt: skip


def sglang_version(directory):
    return tuple(map(int, (pathlib.Path(directory) / "version").read_text().strip().split(".")))


def sglang(directory, model, work, name="sglang", page=16, ranks=1, tokens=16384, context=4096, events=True, replay=True, arguments=()):
    """An SGLang, in a directory of install.sh; ranks are data-parallel, each with room for so many tokens."""
    directory, work = pathlib.Path(directory), pathlib.Path(work)
    # Rank r publishes at the first port + r; both ranges are free with the ports between them.
    port, published, replayed = free_ranges(3, ranks)
    endpoints = {"endpoint": f"tcp://0.0.0.0:{published}"} | ({"replay_endpoint": f"tcp://0.0.0.0:{replayed}"} if replay else {})
    command = [
        str(directory / "bin/python"), "-m", "sglang.launch_server",
        "--model-path", str(pathlib.Path(model) / "model"), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
        "--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
        "--disable-overlap-schedule", "--enable-metrics", "--enable-cache-report", "--max-total-tokens", str(tokens),
        "--max-running-requests", "16", "--context-length", str(context), "--mem-fraction-static", "0.5", "--page-size", str(page),
        "--random-seed", "0", "--dp-size", str(ranks),
        "--sleep-on-idle",  # without it an idle engine takes a core
        *arguments,
    ]  # fmt: skip
    if events:
        command += ["--kv-events-config", json.dumps({"publisher": "zmq"} | endpoints)]
    home = work / (name + "-home")
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": f"{directory}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        # Older releases want one entry for each rank of tensor parallelism, newer ones for each process.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(["0-0"] * (ranks if sglang_version(directory) >= (0, 5, 18) else 1)),
        "OMP_NUM_THREADS": "1",
    }
    local = {key: at.replace("0.0.0.0", "127.0.0.1") for key, at in endpoints.items() if events}
    return Server(
        name, command, environment, work / (name + ".log"), f"http://127.0.0.1:{port}", local.get("endpoint"), local.get("replay_endpoint")
    )  # fmt: skip


def llamacpp(directory, model, work, name="llamacpp", slots=2, context=2048, arguments=()):
    """A llama-server, in a directory of install.sh. Context is per slot."""
    (port,) = free_ports(1)
    command = [
        str(pathlib.Path(directory) / "llama-server"), "--model", str(pathlib.Path(model) / "model.gguf"), "--alias", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--offline",
        "--parallel", str(slots), "--ctx-size", str(slots * context), "--threads", "2", "--metrics",
        # In 16 bits prompts and decoded tokens would differ enough to turn near ties of greedy decoding.
        "--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off", *arguments,
    ]  # fmt: skip
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(work)}
    return Server(name, command, environment, pathlib.Path(work) / (name + ".log"), f"http://127.0.0.1:{port}")

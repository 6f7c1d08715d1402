"""A `penstock up` for tests, and a server which answers as it is told."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import unittest
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, TypeVar

T = TypeVar("T")

MODEL = "meta-llama/Llama-2-7b-hf"
NAMES = ("inference", "vllm", "generate")

# Seconds in which what must happen happens on a busy machine too.
DEADLINE = 60.0


def find_binary() -> str:
    binary = os.environ.get("PENSTOCK_BINARY")
    if not binary:
        raise RuntimeError("PENSTOCK_BINARY is not set: build ./cmd/penstock and name it")
    return binary


def clean_environ() -> dict[str, str]:
    """Return the environment without settings of Penstock."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}


def start_penstock(flags: Sequence[str], log: IO[str]) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a process with NAMES, and return it with what it says when it serves."""
    command = [find_binary(), *flags, "--json", "--namespace", NAMES[0], "--component", NAMES[1]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=clean_environ())
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.communicate()
        log.seek(0)
        raise RuntimeError(f"penstock {flags[0]}: {log.read()}")
    return process, json.loads(line)


class Up:
    """A fleet in one process, with engine sim, at an address which stays the same when it is started again."""

    def __init__(self, *flags: str) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{s.getsockname()[1]}"
        self.url = "http://" + self.address
        self._flags = flags
        self._log: IO[str] = tempfile.TemporaryFile("w+")
        self.start()

    def start(self) -> None:
        flags = ["up", "--engine", "sim", "--http-addr", self.address, "--served-model-name", MODEL, *self._flags]
        self._process, _ = start_penstock(flags, self._log)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        self.kill()
        self._log.close()


class AsyncCase(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        asyncio.get_running_loop().set_debug(False)  # it logs what is slow, and busy machines are


async def wait_until(find: Callable[[], Awaitable[T]], want: Callable[[T], bool]) -> T:
    """Ask until the answer is what is wanted."""
    deadline = time.monotonic() + DEADLINE
    while not want(answer := await find()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {answer!r} after {DEADLINE} s")
        await asyncio.sleep(0.01)  # until the next question
    return answer


def reply(status: int, body: object, **headers: str) -> bytes:
    """Return an HTTP response with a JSON body."""
    text = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text


def rows(*workers: Mapping[str, object]) -> bytes:
    """Return the answer of /v1/router/workers."""
    names = dict(zip(("namespace", "component", "endpoint"), NAMES, strict=True))
    row = {"worker_id": 1, "dp_rank": 0, "role": "aggregated", "state": "ready", "model": "m", "block_size": 16}
    return reply(200, {"rows": [{**row, **names, **worker} for worker in workers or ({},)]})


# At the end of a response: the connection is closed there.
CUT = b"<cut>"


class Scripted:
    """A server which answers each path with its responses in turn, the last one again and again.

    ``requests`` has the heads and bodies which arrived.
    """

    def __init__(self, **responses: list[bytes]) -> None:
        self._responses = {"workers": [rows()], **responses}
        self.requests: list[tuple[str, bytes]] = []
        self.connections = 0
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.closed = asyncio.Event()  # a client closed its connection

    async def __aenter__(self) -> Scripted:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = "http://127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task, writer in self._open.items():
            writer.close()
            await asyncio.wait([task])

    def count(self, path: str) -> int:
        return sum(head.split()[1].endswith(path) for head, _ in self.requests)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"(?i)\r\ncontent-length: *(\d+)", head)
                self.requests.append((head, await reader.readexactly(int(length[1]) if length else 0)))
                script = self._responses[head.split()[1].rsplit("/", 1)[1]]
                response = script.pop(0) if len(script) > 1 else script[0]
                writer.write(response.removesuffix(CUT))
                await writer.drain()
                if response.endswith(CUT):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
        finally:
            writer.close()

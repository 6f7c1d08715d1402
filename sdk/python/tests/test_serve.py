"""A fleet whose workers are Python functions."""

from __future__ import annotations

import array
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import IO, Any
from unittest import mock

import httpx
from fleet import DEADLINE, NAMES, AsyncCase, clean_environ, find_binary, start_penstock, wait_until
from penstock import (
    Context,
    DistributedRuntime,
    GenerateEvent,
    KvEventPublisher,
    KvPushRouter,
    ModelCard,
    PenstockError,
    UnavailableError,
    WorkerExitError,
)
from penstock.handlers import HandlerServer
from toy_worker import BLOCK, CARD, FORK

TOY = Path(__file__).with_name("toy_worker.py")


class Fleet:
    """A frontend with an embedded NATS server, and toy workers."""

    def __init__(self) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+")
        flags = ["frontend", "--nats-listen", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--drain-grace", "0s"]
        self._frontend, started = start_penstock(flags, self._log)
        self.url, self.nats = started["url"], started["nats"]
        self._directory = tempfile.TemporaryDirectory()
        self.gate = Path(self._directory.name) / "gate"
        self.toys: list[subprocess.Popen[str]] = []
        self.runtime = DistributedRuntime(self.url, attempts=1)  # ids asks again
        self.endpoint = self.runtime.namespace(NAMES[0]).component(NAMES[1]).endpoint(NAMES[2])

    async def start_toys(self, count: int) -> list[int]:
        """Start toys, and return the ids of their workers."""
        environ = {**clean_environ(), "PENSTOCK_BIN": find_binary()}
        for _ in range(count):
            command = [sys.executable, "-B", str(TOY), str(self.gate), "--nats", self.nats]
            self.toys.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environ)
            )
        return await wait_until(self.ids, lambda ids: len(ids) == count)

    async def ids(self) -> list[int]:
        try:
            return await self.endpoint.client().worker_ids()
        except UnavailableError:
            return []

    async def states(self) -> list[str]:
        async with httpx.AsyncClient(timeout=DEADLINE, trust_env=False) as http:
            rows = (await http.get(self.url + "/v1/router/workers")).json()["rows"]
        return [row["state"] for row in rows]

    def worker_pid(self, toy: int) -> int:
        pid = self.toys[toy].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def read_log(self) -> str:
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()  # the children write where seek would go

    async def read_line(self, toy: int) -> str:
        stdout = self.toys[toy].stdout
        assert stdout is not None
        return await asyncio.wait_for(asyncio.to_thread(stdout.readline), DEADLINE)

    async def exit_code(self, toy: int) -> int:
        return await asyncio.to_thread(self.toys[toy].wait, DEADLINE)

    async def close(self) -> None:
        await self.runtime.close()
        for toy in self.toys:
            toy.kill()
            toy.communicate()
        self._directory.cleanup()
        self._frontend.kill()
        self._frontend.communicate()
        self._log.close()


async def has_ended(pid: int) -> bool:
    """Say whether a process has ended; its parent need not know that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def stream_text(
    http: httpx.AsyncClient, url: str, prompt: list[int], tokens: int, began: asyncio.Event
) -> str:
    """Return the text of a streamed answer; began is set with its first event."""
    body = {"model": "toy", "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}
    text, done = "", False
    async with http.stream("POST", url + "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
            elif line.startswith("data: "):  # others are comments, while nothing comes
                event = json.loads(data)
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
                began.set()
    assert done, "the stream has no end"
    return text


def cached_tokens(events: list[GenerateEvent]) -> int:
    """Return what the first or the last event says: none of them says 0."""
    return sum(event.get("cached_tokens", 0) for event in events)


class FleetTest(AsyncCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.fleet = await asyncio.to_thread(Fleet)
        self.addAsyncCleanup(self.fleet.close)

    async def generate(self, tokens: int) -> AsyncGenerator[GenerateEvent, None]:
        router = KvPushRouter(self.fleet.endpoint, BLOCK)
        return await router.generate([1, 2], "toy", stop_conditions={"max_tokens": tokens})

    async def test_killed_with_100_streams(self) -> None:
        await self.fleet.start_toys(2)
        prompts = [[50 + i, 51, 52, 53] for i in range(100)]
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, timeout=DEADLINE, trust_env=False) as http:

            async def ask_all(began: list[asyncio.Event]) -> list[str]:
                asked = zip(prompts, began, strict=True)
                return await asyncio.gather(*(stream_text(http, self.fleet.url, p, 100, b) for p, b in asked))

            began = [asyncio.Event() for _ in prompts]
            answers = asyncio.create_task(ask_all(began))
            for one in began:
                await asyncio.wait_for(one.wait(), DEADLINE)
            worker = self.fleet.worker_pid(0)
            self.fleet.toys[0].kill()
            self.fleet.gate.touch()
            broken = await answers
            await wait_until(lambda: has_ended(worker), bool)
            await wait_until(self.fleet.ids, lambda ids: len(ids) == 1)
            self.assertEqual(await ask_all(began), broken)
            metrics = (await http.get(self.fleet.url + "/metrics")).text
        self.assertEqual({len(text) for text in broken}, {100})
        moved = re.findall(r"(?m)^penstock_frontend_migrations_total.* (\d+)$", metrics)
        self.assertGreater(sum(map(int, moved)), 0)

    async def test_events_route(self) -> None:
        await self.fleet.start_toys(2)
        router = KvPushRouter(self.fleet.endpoint, BLOCK)
        prompt = list(range(100, 100 + 4 * BLOCK + 1))
        stream = await router.generate(prompt, "toy", stop_conditions={"max_tokens": 2})
        events = [event async for event in stream]
        self.assertEqual(cached_tokens(events), 0)
        first = events[0]["worker_id"]
        best = await wait_until(lambda: router.best_worker_id(prompt), lambda best: best[1] == 4)
        self.assertEqual(best, (first, 4))
        again = [event async for event in await router.generate(prompt, "toy", stop_conditions={"max_tokens": 2})]
        self.assertEqual((again[0]["worker_id"], cached_tokens(again)), (first, 4 * BLOCK))
        answers = [[token for event in one for token in event["token_ids"]] for one in (events, again)]
        self.assertEqual(answers[0], answers[1])

    async def test_cancel(self) -> None:
        await self.fleet.start_toys(1)
        stream = await self.generate(4000)
        await anext(stream)
        await stream.aclose()
        self.assertEqual(await self.fleet.read_line(0), "cancelled True\n")

    async def test_drain(self) -> None:
        await self.fleet.start_toys(1)
        stream = await self.generate(200)
        count = len((await anext(stream))["token_ids"])
        self.fleet.toys[0].send_signal(signal.SIGTERM)
        await wait_until(self.fleet.states, lambda states: "ready" not in states)  # it drains, then is not listed
        self.fleet.gate.touch()
        async for event in stream:
            count += len(event["token_ids"])
        self.assertEqual(count, 200)
        self.assertEqual(await self.fleet.exit_code(0), 0)

    async def test_worker_dies(self) -> None:
        await self.fleet.start_toys(1)
        os.kill(self.fleet.worker_pid(0), signal.SIGKILL)
        self.assertEqual(await self.fleet.exit_code(0), 1)
        self.assertIn("WorkerExitError: the worker ended with code -9", self.fleet.read_log())

    async def test_killed_with_child(self) -> None:
        await self.fleet.start_toys(1)
        worker = self.fleet.worker_pid(0)
        router = KvPushRouter(self.fleet.endpoint, BLOCK)
        stream = await router.generate([FORK, 1], "toy", stop_conditions={"max_tokens": 200})
        child = int(await self.fleet.read_line(0))
        try:
            self.fleet.toys[0].kill()
            with self.assertRaises(PenstockError):
                async for _ in stream:
                    pass
            await wait_until(lambda: has_ended(worker), bool)
        finally:
            os.kill(child, signal.SIGTERM)
        await wait_until(lambda: has_ended(child), bool)

    async def serve(self, runtime: DistributedRuntime, workers: int, **options: Any) -> asyncio.Task[None]:
        """Serve from this process, and return when the fleet has a number of workers."""
        environ = {**clean_environ(), "PENSTOCK_BIN": find_binary()}
        args = ["--nats", self.fleet.nats, "--log-level", "error", "--drain-timeout", "10m"]
        endpoint = runtime.namespace(NAMES[0]).component(NAMES[1]).endpoint(NAMES[2])
        with mock.patch.dict(os.environ, environ, clear=True):
            task = asyncio.create_task(endpoint.serve_endpoint(wait_for_end, CARD, worker_args=args, **options))
            self.addAsyncCleanup(end_task, task)
            await wait_until(self.fleet.ids, lambda ids: len(ids) == workers or task.done())
        self.assertFalse(task.done(), task)
        return task

    async def test_sigterm_of_two_runtimes(self) -> None:
        async with DistributedRuntime(self.fleet.url) as other:
            tasks = [await self.serve(self.fleet.runtime, 1), await self.serve(other, 2)]
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE)
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)

    async def test_shutdown_of_one_runtime(self) -> None:
        async with DistributedRuntime(self.fleet.url) as other:
            first, second = await self.serve(self.fleet.runtime, 1), await self.serve(other, 2)
            loop = asyncio.get_running_loop()
            loop.set_debug(True)  # what only the loop's thread may call raises then
            await asyncio.to_thread(self.fleet.runtime.shutdown)
            loop.set_debug(False)
            await asyncio.wait_for(first, DEADLINE)
            self.assertFalse(second.done())

    async def test_shutdown_without_grace(self) -> None:
        task = await self.serve(self.fleet.runtime, 1, graceful_shutdown=False)
        stream = await self.generate(200)
        await anext(stream)
        self.fleet.runtime.shutdown()
        await asyncio.wait_for(task, DEADLINE)
        with self.assertRaises(PenstockError):
            await anext(stream)


async def end_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def wait_for_end(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    """Yield one token, and no end."""
    yield {"token_ids": [50]}
    await context.async_killed_or_stopped()


class WorkerTest(AsyncCase):
    """What becomes of serve_endpoint with other programs as workers."""

    async def serve(self, script: str, card: ModelCard = CARD, publisher: KvEventPublisher | None = None) -> None:
        self.runtime = DistributedRuntime("http://127.0.0.1:1")
        endpoint = self.runtime.namespace("n").component("c").endpoint("e")
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory) / "program"
            program.write_text("#!/bin/sh\n" + script)
            program.chmod(0o700)
            with mock.patch.dict(os.environ, {"PENSTOCK_BIN": str(program)}):
                await endpoint.serve_endpoint(wait_for_end, card, kv_publisher=publisher)

    async def test_publisher_of_another_size(self) -> None:
        with KvEventPublisher("tcp://127.0.0.1:*", block_size=2 * BLOCK) as publisher:
            with self.assertRaisesRegex(ValueError, "block_size is 16 in the card and 32 in the kv_publisher"):
                await self.serve("exit 3", publisher=publisher)
            with self.assertRaisesRegex(ValueError, "total_blocks"):
                await self.serve("exit 3", ModelCard("m", "p", block_size=2 * BLOCK), publisher)

    async def test_stopped_before_it_handles_signals(self) -> None:
        task = asyncio.create_task(self.serve("exec sleep 1000"))

        async def stop() -> bool:
            self.runtime.shutdown()
            return task.done()

        await asyncio.sleep(0)  # task has set runtime
        await wait_until(stop, bool)
        await task

    async def test_output_is_read(self) -> None:
        with self.assertRaisesRegex(WorkerExitError, "code 3"):
            await asyncio.wait_for(self.serve("echo '{}'; head -c 1000000 /dev/zero; exit 3"), DEADLINE)

    async def test_directory_with_comma(self) -> None:
        with tempfile.TemporaryDirectory(prefix="a,b") as directory:
            with mock.patch.object(tempfile, "tempdir", directory), self.assertRaisesRegex(PenstockError, "TMPDIR"):
                await self.serve("exit 3")


class Number:
    """A scalar as NumPy's."""

    def tolist(self) -> int:
        return 8


class HandlerTest(AsyncCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.cancelled = asyncio.Event()
        self.running = self.yielded = 0
        self.server = HandlerServer(self.handle, ModelCard("m", "p"), "k")
        self.port = int((await self.server.start()).rsplit(":", 1)[1])
        self.addAsyncCleanup(self.server.close)

    async def handle(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        kind = request["token_ids"][0]
        self.running += 1
        try:
            yield {"token_ids": [7]}
            if kind == 1:
                raise ValueError("not this one")
            if kind == 2:
                raise KeyError("secret")
            if kind == 3:
                raise UnavailableError("moving", 503)
            if kind == 4:
                yield {"token_ids": [8], "finish_reason": "eos"}
                yield {"token_ids": [9]}
            if kind == 5:
                await asyncio.Event().wait()
            if kind == 6:
                raise GeneratorExit
            if kind == 7:
                raise ConnectionResetError("secret")
            if kind == 8:
                yield {"token_ids": array.array("I", [8, 9]), "cached_tokens": Number()}
            while kind == 9:
                self.yielded += 1
                yield {"token_ids": [8]}
        finally:
            for _ in range(50):
                await asyncio.sleep(0)  # a cleanup of several rounds of the event loop, for which the server waits
            self.running -= 1
            if context.is_cancelled():
                self.cancelled.set()

    async def ask(self, line: str, body: bytes = b"", key: str = "k") -> bytes:
        """Return the response to a request."""
        reader, writer = await self.send(line, body, key)
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
        return answer

    async def send(
        self, line: str, body: bytes = b"", key: str = "k"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request_bytes(line, body, key))
        return reader, writer

    async def test_ends(self) -> None:
        for kind, want, never, logged in (
            (0, b'"finish_reason":"length"', b"error", ""),
            (1, b'"error":{"message":"not this one","code":400}', b"finish_reason", "ValueError: not this one"),
            (2, b'"error":{"message":"KeyError","code":500}', b"secret", "KeyError: 'secret'"),
            (3, b'"error":{"message":"moving","code":503}', b"finish_reason", ""),
            (4, b'"finish_reason":"eos"', b"[9]", ""),
            (6, b'"error":{"message":"the handler gave the request up","code":503}', b"finish_reason", ""),
            (7, b'"error":{"message":"ConnectionResetError","code":500}', b"secret", "ConnectionResetError: secret"),
            (8, b'{"token_ids":[8,9],"cached_tokens":8}', b"error", ""),
        ):
            logs: Any = self.assertLogs("penstock") if logged else self.assertNoLogs("penstock")
            with self.subTest(kind=kind):
                with logs as records:
                    answer = await self.ask("POST /generate", call_body(kind))
                if logged:
                    self.assertIn(logged, "".join(records.output))
                self.assertIn(b'data: {"token_ids":[7]}\n\n', answer)
                self.assertIn(want, answer)
                self.assertNotIn(never, answer)
                self.assertTrue(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), answer)

    async def test_refused(self) -> None:
        for line, body, key, status in (
            ("POST /generate", call_body(0), "other", 401),
            ("GET /generate", b"", "k", 404),
            ("POST /health", b"", "k", 404),
            ("POST /generate", b'{"token_ids":', "k", 400),
            ("POST /generate", b'{"token_ids":3}', "k", 400),
            ("POST /generate", b"[" * 1_000_000, "k", 400),
            ("POST", b"", "k", 400),
        ):
            with self.subTest(line=line, body=body[:20]):
                answer = await self.ask(line, body, key)
                self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), answer)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /generate HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Length: 999999999\r\n\r\n")
        self.assertTrue((await reader.read()).startswith(b"HTTP/1.1 413 "))
        writer.close()

    async def test_end_of_connection(self) -> None:
        for kind in (5, 9):
            with self.subTest(kind=kind):
                self.cancelled.clear()
                reader, writer = await self.send("POST /generate", call_body(kind))
                await asyncio.wait_for(reader.readuntil(b"[7]"), DEADLINE)
                self.assertLess(self.yielded, 1000)  # which are less than what is written without a wait
                writer.close()
                await asyncio.wait_for(self.cancelled.wait(), DEADLINE)

    async def test_end_seen_by_write(self) -> None:
        with mock.patch.object(asyncio.StreamWriter, "drain", side_effect=ConnectionResetError):
            with self.assertNoLogs("penstock"):
                await self.ask("POST /generate", call_body(5))
        self.assertTrue(self.cancelled.is_set())

    async def test_connection_at_close(self) -> None:
        for rounds in range(10):
            server = HandlerServer(self.handle, ModelCard("m", "p"), "k")
            port = int((await server.start()).rsplit(":", 1)[1])
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(request_bytes("POST /generate", call_body(5), "k"))
                for _ in range(rounds):
                    await asyncio.sleep(0)  # one round of the event loop, which accepts in several
                await server.close()
                for _ in range(20):
                    await asyncio.sleep(0)  # in so many rounds a connection is accepted and served
                self.assertEqual(self.running, 0, rounds)

    def test_cards(self) -> None:
        for wrong in ({"block_size": 1}, {"total_blocks": -1}, {"context_length": 1}, {"name": ""}, {"path": ""}):
            with self.subTest(wrong=wrong), self.assertRaises(ValueError):
                ModelCard(**{"name": "m", "path": "p", **wrong})  # type: ignore[arg-type]


def call_body(kind: int) -> bytes:
    return json.dumps({"request_id": "r", "token_ids": [kind], "stop_conditions": {"max_tokens": 1}}).encode()


def request_bytes(line: str, body: bytes, key: str) -> bytes:
    head = f"{line} HTTP/1.1\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


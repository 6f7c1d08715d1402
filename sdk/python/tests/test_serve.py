"""A fleet whose workers are Python functions."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import IO, Any

import httpx
from fleet import DEADLINE, NAMES, AsyncCase, clean_environ, find_binary, start_penstock, wait_until
from penstock import Context, DistributedRuntime, GenerateEvent, KvPushRouter, ModelCard, UnavailableError
from penstock.handlers import HandlerServer
from toy_worker import BLOCK

TOY = Path(__file__).with_name("toy_worker.py")


class Fleet:
    """A frontend with an embedded NATS server, and toy workers."""

    def __init__(self) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+")
        flags = ["frontend", "--nats-listen", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--drain-grace", "0s"]
        self._frontend, started = start_penstock(flags, self._log)
        self.url, self._nats = started["url"], started["nats"]
        self._directory = tempfile.TemporaryDirectory()
        self.gate = Path(self._directory.name) / "gate"
        self.toys: list[subprocess.Popen[str]] = []
        self.runtime = DistributedRuntime(self.url, attempts=1)  # ids asks again
        self.endpoint = self.runtime.namespace(NAMES[0]).component(NAMES[1]).endpoint(NAMES[2])

    async def start_toys(self, count: int) -> list[int]:
        """Start toys, and return the ids of their workers."""
        environ = {**clean_environ(), "PENSTOCK_BIN": find_binary()}
        for _ in range(count):
            command = [sys.executable, "-B", str(TOY), str(self.gate), "--nats", self._nats]
            self.toys.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environ)
            )
        return await wait_until(self.ids, lambda ids: len(ids) == count)

    async def ids(self) -> list[int]:
        try:
            return await self.endpoint.client().worker_ids()
        except UnavailableError:
            return []

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
            self.fleet.toys[0].kill()
            self.fleet.gate.touch()
            broken = await answers
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
        self.fleet.gate.touch()
        async for event in stream:
            count += len(event["token_ids"])
        self.assertEqual(count, 200)
        self.assertEqual(await self.fleet.exit_code(0), 0)

    async def test_worker_dies(self) -> None:
        await self.fleet.start_toys(1)
        pid = self.fleet.toys[0].pid
        worker = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        os.kill(worker, signal.SIGKILL)
        self.assertEqual(await self.fleet.exit_code(0), 1)


class HandlerTest(AsyncCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.cancelled = asyncio.Event()

    async def handle(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        yield {"token_ids": [7]}
        kind = request["token_ids"][0]
        if kind == 1:
            raise ValueError("not this one")
        if kind == 2:
            raise KeyError("secret")
        if kind == 3:
            raise UnavailableError("moving", 503)
        if kind == 6:
            raise GeneratorExit
        if kind == 4:
            yield {"token_ids": [8], "finish_reason": "eos"}
            yield {"token_ids": [9]}
        if kind == 5:
            try:
                await asyncio.Event().wait()
            finally:
                assert context.is_cancelled()
                self.cancelled.set()

    async def ask(self, *tokens: int, key: str = "k") -> bytes:
        """Return the response to a call."""
        reader, writer = await self.call(*tokens, key=key)
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
        return answer

    async def call(self, *tokens: int, key: str = "k") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        server = HandlerServer(self.handle, ModelCard("m", "p"), "k")
        port = int((await server.start()).rsplit(":", 1)[1])
        self.addAsyncCleanup(server.close)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"request_id": "r", "token_ids": tokens, "stop_conditions": {"max_tokens": 1}}).encode()
        head = f"POST /generate HTTP/1.1\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        return reader, writer

    async def test_ends(self) -> None:
        for tokens, want, never in (
            ([0], b'"finish_reason":"length"', b"error"),
            ([1], b'"error":{"message":"not this one","code":400}', b"finish_reason"),
            ([2], b'"error":{"message":"KeyError","code":500}', b"secret"),
            ([3], b'"error":{"message":"moving","code":503}', b"finish_reason"),
            ([6], b'"error":{"message":"the handler gave the request up","code":503}', b"finish_reason"),
            ([4], b'"finish_reason":"eos"', b"[9]"),
        ):
            with self.subTest(tokens=tokens):
                answer = await self.ask(*tokens)
                self.assertIn(b'data: {"token_ids":[7]}\n\n', answer)
                self.assertIn(want, answer)
                self.assertNotIn(never, answer)
                self.assertTrue(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), answer)

    async def test_key(self) -> None:
        self.assertTrue((await self.ask(0, key="other")).startswith(b"HTTP/1.1 401 "))

    async def test_end_of_connection(self) -> None:
        reader, writer = await self.call(5)
        await asyncio.wait_for(reader.readuntil(b"[7]"), DEADLINE)
        writer.close()
        await asyncio.wait_for(self.cancelled.wait(), DEADLINE)

    def test_cards(self) -> None:
        for wrong in ({"block_size": 1}, {"total_blocks": -1}, {"context_length": 1}, {"name": ""}, {"path": ""}):
            with self.subTest(wrong=wrong), self.assertRaises(ValueError):
                ModelCard(**{"name": "m", "path": "p", **wrong})  # type: ignore[arg-type]

"""The client against a real fleet: PENSTOCK_BINARY=penstock python -m unittest discover sdk/python/tests."""

from __future__ import annotations

import asyncio
import random
import re
import unittest
import warnings
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx

from fleet import MODEL, NAMES, AsyncCase, Up, wait_until
from penstock import (
    ConfigError,
    DistributedRuntime,
    Endpoint,
    GenerateEvent,
    KvPushRouter,
    KvRouterConfig,
    RefusedError,
    StreamBrokenError,
    UnavailableError,
    UnknownNameError,
    UnreachableError,
)

# Generation which ends only if it is ended: sim takes minutes for it.
ENDLESS = {"max_tokens": 200_000, "ignore_eos": True}


def endpoint(runtime: DistributedRuntime) -> Endpoint:
    return runtime.namespace(NAMES[0]).component(NAMES[1]).endpoint(NAMES[2])


def prompt(seed: int, tokens: int) -> list[int]:
    """Return tokens of the model's vocabulary, which no other seed begins with."""
    return random.Random(seed).choices(range(1, 1700), k=tokens)


async def collect(stream: AsyncGenerator[GenerateEvent, None]) -> tuple[list[int], GenerateEvent]:
    """Return the tokens and the last event of an answer."""
    tokens: list[int] = []
    async for event in stream:
        tokens += event["token_ids"]
        last = event
    return tokens, last


class Fleet(AsyncCase):
    up: Up

    @classmethod
    def setUpClass(cls) -> None:
        cls.up = Up("--workers", "3")
        cls.addClassCleanup(cls.up.close)

    def setUp(self) -> None:
        self.runtime = DistributedRuntime(self.up.url)
        self.endpoint = endpoint(self.runtime)
        self.router = KvPushRouter(self.endpoint, 16, KvRouterConfig())

    async def asyncTearDown(self) -> None:
        await self.runtime.close()

    async def explain(self, tokens: list[int], override: Mapping[str, object]) -> Any:
        body = {"model": MODEL, "token_ids": tokens, "router_config_override": override}
        async with httpx.AsyncClient() as http:
            response = await http.post(self.up.url + "/v1/router/explain", json=body)
        return response.raise_for_status().json()["decision"]

    async def idle(self) -> bool:
        """Return whether the workers have no request, as the router counts them and as they report them."""
        async with httpx.AsyncClient() as http:
            table = (await http.get(self.up.url + "/v1/router/workers")).raise_for_status().json()["rows"]
        loads = [row["load"] for row in table]
        return all(load["active_requests"] == 0 and load["reported"] and load["reported"]["running"] == 0 for load in loads)

    async def test_generate(self) -> None:
        stream = await self.router.generate(
            token_ids=range(1, 11),
            model=MODEL,
            stop_conditions={"max_tokens": 20, "ignore_eos": True},
            sampling_options={"temperature": 0.7, "top_p": 0.9, "seed": None},
            router_config_override={"overlap_score_weight": 2.0, "router_temperature": 0.5},
        )
        tokens, last = await collect(stream)
        self.assertEqual(len(tokens), 20)
        self.assertEqual(last.get("finish_reason"), "length")
        self.assertIn(last["worker_id"], await self.endpoint.client().worker_ids())

    async def test_override_changes_the_decision(self) -> None:
        """Of a worker with the prompt and much to do, the weight decides whether it gets the prompt again."""
        tokens = prompt(1, 64 * 16)
        client = self.endpoint.client()
        _, last = await collect(await client.random({"token_ids": tokens, "stop_conditions": {"max_tokens": 1}}))
        holder = last["worker_id"]
        busy = await client.direct({"token_ids": prompt(2, 320), "stop_conditions": ENDLESS}, holder)
        async with aclosing(busy):
            await busy.__anext__()
            for weight, chosen in ((2.0, True), (0.0, False)):
                override = {"overlap_score_weight": weight}
                decision = await self.explain(tokens, override)
                self.assertEqual((decision["mode"], decision["worker_id"] == holder), ("kv", chosen), decision)
                # The configuration's default does the same as an override, and an override wins.
                for router, given in (
                    (self.router, override),
                    (KvPushRouter(self.endpoint, 16, KvRouterConfig(overlap_score_weight=weight)), None),
                    (KvPushRouter(self.endpoint, 16, KvRouterConfig(overlap_score_weight=2 - weight)), override),
                ):
                    best, _ = await router.best_worker_id(tokens, given)
                    self.assertEqual(best == holder, chosen)
                    stream = await router.generate(tokens, MODEL, {"max_tokens": 1}, router_config_override=given)
                    _, last = await collect(stream)
                    self.assertEqual(last["worker_id"] == holder, chosen)
                if chosen:  # the requests left the prompt where it was
                    self.assertEqual((await self.explain(tokens, override))["worker_id"], holder)

    async def test_best_worker(self) -> None:
        """A prefix which one worker has cached is found there, block for block."""
        tokens = prompt(3, 10 * 16 + 2)
        for worker in await self.endpoint.client().worker_ids():
            own = [worker, *tokens]
            _, last = await collect(await self.router.generate(own, MODEL, {"max_tokens": 1}, worker_id=worker))
            self.assertEqual(last["worker_id"], worker)
            await wait_until(lambda: self.router.best_worker_id(own), lambda best: best == (worker, 10))
            await wait_until(lambda: self.router.best_worker_id(own[:50]), lambda best: best == (worker, 3))

    async def test_potential_loads(self) -> None:
        workers = await self.endpoint.client().worker_ids()
        loads = await self.router.get_potential_loads(prompt(4, 100))
        self.assertEqual(sorted(load["worker_id"] for load in loads), workers)
        for load in loads:
            self.assertEqual((load["dp_rank"], load["potential_prefill_tokens"]), (0, 100))
            self.assertGreaterEqual(load["potential_decode_blocks"], 6)
        best = min(loads, key=lambda load: load["potential_prefill_tokens"])
        stream = await self.router.generate(prompt(4, 100), MODEL, {"max_tokens": 2}, worker_id=best["worker_id"])
        self.assertEqual((await collect(stream))[1]["worker_id"], best["worker_id"])

    async def test_client(self) -> None:
        client = await self.endpoint.client()
        workers = await client.worker_ids()
        self.assertEqual(len(workers), 3)
        request = {"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": 1}}
        for worker in workers:
            self.assertEqual((await collect(await client.direct(request, worker)))[1]["worker_id"], worker)
        visited = [(await collect(await client.round_robin(request)))[1]["worker_id"] for _ in range(6)]
        self.assertEqual(sorted(visited[:3]), workers)
        self.assertEqual(visited[:3], visited[3:])
        # By cache and load all of these would go to one worker.
        for send in (client.random, client.generate):
            found = {(await collect(await send(request)))[1]["worker_id"] for _ in range(40)}
            self.assertEqual(sorted(found), workers)

    async def test_cancel(self) -> None:
        """Closing or dropping an iterator, and cancelling its task, end the request at the worker."""
        await wait_until(self.idle, bool)
        started = asyncio.Event()

        async def read() -> None:
            async for _ in await self.router.generate([5, 6, 7], MODEL, ENDLESS):
                started.set()

        for how in ("close", "drop", "drop unread", "cancel"):
            with self.subTest(how):
                if how == "cancel":
                    task = asyncio.create_task(read())
                    await started.wait()
                    task.cancel()
                    await asyncio.wait([task])
                    self.assertTrue(task.cancelled())
                else:
                    stream = await self.router.generate([5, 6, 7], MODEL, ENDLESS)
                    if how != "drop unread":
                        await stream.__anext__()
                    if how == "close":
                        await stream.aclose()
                    del stream
                await wait_until(self.idle, bool)

    async def test_unknown_worker(self) -> None:
        client = self.endpoint.client()
        for call in (self.router.generate([1], MODEL, worker_id=99), client.direct({"token_ids": [1]}, 99)):
            with self.assertRaisesRegex(RefusedError, "worker 99 .*penstock workers") as caught:
                await call
            self.assertEqual(caught.exception.status, 404)

    async def test_unknown_model(self) -> None:
        with self.assertRaisesRegex(RefusedError, "no-such-model") as caught:
            await self.router.generate([1], "no-such-model")
        self.assertEqual(caught.exception.status, 404)

    async def test_no_worker_fits(self) -> None:
        """A request which rules out every worker is refused in the end, with the reason."""
        query = {"moe_query": {"layer_id": 3, "fallback_to_unlabeled": False}}
        async with DistributedRuntime(self.up.url, attempts=2) as runtime:
            with self.assertLogs("penstock") as logs, self.assertRaises(UnavailableError) as caught:
                await KvPushRouter(endpoint(runtime), 16).best_worker_id([1] * 32, query)
        self.assertEqual((caught.exception.status, caught.exception.code), (503, "no_eligible_worker"))
        self.assertRegex("".join(logs.output), "attempt 2 of 2")

    async def test_names(self) -> None:
        for path, words in (
            (("dynamo", "VllmWorker", "generate"), "no namespace 'dynamo'; to inference"),
            (("inference", "backend", "generate"), "no component 'backend' in inference; to vllm"),
            (("inference", "vllm", "embed"), "no endpoint 'embed' in vllm; to generate"),
        ):
            where = self.runtime.namespace(path[0]).component(path[1]).endpoint(path[2])
            calls: list[Awaitable[object]] = [
                where.client().round_robin({"token_ids": [1]}),
                KvPushRouter(where, 16).get_potential_loads([1]),
                KvPushRouter(where, 16).generate([1], MODEL),
            ]
            for call in calls:
                with self.assertRaisesRegex(UnknownNameError, words):
                    await call

    async def test_config(self) -> None:
        for size in (8, 64):
            with self.assertRaisesRegex(ConfigError, f"block_size is {size}, and the blocks .* have 16 tokens"):
                await KvPushRouter(self.endpoint, size).best_worker_id([1])
        same = KvRouterConfig(
            use_kv_events=True,
            router_replica_sync=True,
            router_reset_states="off",
            router_snapshot_threshold=10_000,
            router_session_ttl="10m",
            router_queue_patience=30,
            router_predicted_ttl="2000ms",
            router_queue_threshold="off",
            router_fetch_costs=(0.25, 0.75, 0.25),
            busy_threshold=0,
        )
        await KvPushRouter(self.endpoint, 16, same).best_worker_id([1])
        for config, words in (
            (KvRouterConfig(use_kv_events=False), r"--no-kv-events on \(it has off\)"),
            (KvRouterConfig(router_replica_sync=False), r"--router-replica-sync off \(it has on\)"),
            (KvRouterConfig(router_session_ttl=60), r"--router-session-ttl 60 \(it has 10m0s\)"),
            (KvRouterConfig(router_snapshot_threshold=5), "--router-snapshot-threshold 5"),
            (KvRouterConfig(router_fetch_costs=[1, 1, 1]), "--router-fetch-costs 1,1,1"),
            (KvRouterConfig(migration_limit=1, busy_threshold=0.5), "--busy-threshold 0.5 .*--migration-limit 1"),
        ):
            with self.assertRaisesRegex(ConfigError, words):
                await KvPushRouter(self.endpoint, 16, config).best_worker_id([1])

    async def test_two_loops(self) -> None:
        """A runtime may outlive an event loop, whose connections nobody closes."""
        warnings.simplefilter("ignore", ResourceWarning)

        async def ask() -> int:
            return len(await self.router.get_potential_loads([1, 2, 3]))

        for _ in range(2):
            self.assertEqual(await asyncio.to_thread(lambda: asyncio.run(ask())), 3)
        self.assertEqual(await ask(), 3)

    def test_config_has_every_setting(self) -> None:
        """The fields are the settings of the router, but those which requests or the classes here have."""
        text = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
        section = text.split("\n## Router\n")[1].split("\n## ")[0]
        settings = set(re.findall(r"^\* \*\*`([a-z-]+)`", section, re.MULTILINE))
        self.assertGreater(len(settings), 20)
        of_requests = {"kv-overlap-score-weight", "router-temperature", "ttft-target", "itl-target", "no-kv-events"}
        names = {field.name.replace("_", "-") for field in fields(KvRouterConfig)}
        self.assertEqual(settings - of_requests - names, {"router-component"})  # the name of an endpoint's component


class Restart(AsyncCase):
    async def test_restart(self) -> None:
        up = Up()
        self.addCleanup(up.close)
        # On a busy machine a start takes longer than all attempts of a quiet one.
        runtime = DistributedRuntime(up.url, attempts=30)
        router = KvPushRouter(endpoint(runtime), 16, KvRouterConfig())
        first, _ = await collect(await router.generate([1, 2, 3], MODEL, {"max_tokens": 4}, {"seed": 1}))

        # A stream which has begun breaks; what it gave is known.
        stream = await router.generate([1, 2, 3], MODEL, ENDLESS)
        got = len((await stream.__anext__())["token_ids"])
        up.kill()
        with self.assertRaisesRegex(StreamBrokenError, "broke off after [0-9]+ tokens .*send .* again") as broken:
            async for event in stream:
                got += len(event["token_ids"])
        self.assertEqual(broken.exception.tokens, got)

        # Without anything there an attempt says what to do; a request which has not begun waits for the next server.
        async with DistributedRuntime(up.url, attempts=1) as once:
            with self.assertRaisesRegex(UnreachableError, "start `penstock up`, or name .* PENSTOCK_SERVER"):
                await KvPushRouter(endpoint(once), 16).best_worker_id([1])
        with self.assertLogs("penstock", "WARNING") as log:
            sent = asyncio.create_task(router.generate([1, 2, 3], MODEL, {"max_tokens": 4}, {"seed": 1}))
            loads = asyncio.create_task(router.get_potential_loads([1, 2, 3]))
            while len(log.records) < 2:
                await asyncio.sleep(0.01)  # until both calls have found no server
            await asyncio.to_thread(up.start)
            again, _ = await collect(await sent)
            self.assertEqual(len(await loads), 2)
        self.assertEqual(len(again), len(first))

        # A connection which waits for the next request does not outlive a restart.
        up.kill()
        await asyncio.to_thread(up.start)
        self.assertEqual((await router.best_worker_id([1, 2, 3]))[1], 0)
        await runtime.close()


if __name__ == "__main__":
    unittest.main()

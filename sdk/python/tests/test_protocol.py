"""The client against servers which answer as no fleet does when it is asked to."""

from __future__ import annotations

import asyncio
import json
import os
import unittest
from unittest import mock

from fleet import CUT, NAMES, AsyncCase, Scripted, reply, rows
from penstock import (
    DistributedRuntime,
    Endpoint,
    KvPushRouter,
    KvRouterConfig,
    PenstockError,
    RefusedError,
    StreamBrokenError,
    UnavailableError,
    UnknownNameError,
    UnreachableError,
    namespace,
)
from penstock import server as server_module

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"token_ids":[4,5],"worker_id":1,"dp_rank":0}\n\n'
DONE = b"data: [DONE]\n\n"
BEST = reply(200, {"worker_id": 1, "dp_rank": 0, "overlap_blocks": 2, "block_size": 16})


def chunks(*parts: bytes, end: bool = True) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return STREAM + body + (b"0\r\n\r\n" if end else b"")


def refusal(status: int, retry: str, **headers: str) -> bytes:
    error = {"error": {"message": "the fleet is busy", "code": "overloaded", "type": "t", "param": None}}
    return reply(status, error, X_Should_Retry=retry, **headers)


class Protocol(AsyncCase):
    def setUp(self) -> None:
        self.log = mock.Mock()
        quick = mock.patch.multiple(server_module, _FIRST_WAIT=0.001, _LONGEST_WAIT=0.01, _log=self.log)
        quick.start()
        self.addCleanup(quick.stop)

    def endpoint(self, url: str) -> Endpoint:
        runtime = DistributedRuntime(url, attempts=3)
        self.addAsyncCleanup(runtime.close)
        return runtime.namespace(NAMES[0]).component(NAMES[1]).endpoint(NAMES[2])

    async def test_attempts(self) -> None:
        """What may pass is asked again as often as is said, and nothing else is."""
        for responses, calls, want in (
            ([refusal(503, "true", Retry_After="1"), BEST], 2, None),
            ([refusal(503, "true"), refusal(429, "true"), BEST], 3, None),
            ([CUT, CUT, BEST], 3, None),
            ([refusal(503, "true", Retry_After="7")], 3, UnavailableError),
            ([refusal(503, "false")], 1, UnavailableError),
            ([refusal(500, "false")], 1, RefusedError),
            ([refusal(400, "false")], 1, RefusedError),
            ([CUT], 3, UnreachableError),
            ([reply(302, {}, Location="/elsewhere")], 1, RefusedError),
        ):
            with self.subTest(responses=responses):
                async with Scripted(best_worker=list(responses)) as server:
                    router = KvPushRouter(self.endpoint(server.url), 16)
                    if want is None:
                        self.assertEqual(await router.best_worker_id([1] * 40), (1, 2))
                    else:
                        with self.assertRaises(want) as caught:
                            await router.best_worker_id([1] * 40)
                        if isinstance(caught.exception, RefusedError) and caught.exception.status != 302:
                            self.assertEqual(str(caught.exception), "the fleet is busy")
                            self.assertEqual(caught.exception.code, "overloaded")
                    self.assertEqual(server.count("/best_worker"), calls)

    async def test_retry_after(self) -> None:
        async with Scripted(best_worker=[refusal(503, "true", Retry_After="7")]) as server:
            with self.assertRaises(UnavailableError) as caught:
                await KvPushRouter(self.endpoint(server.url), 16).best_worker_id([1])
            self.assertEqual((caught.exception.status, caught.exception.retry_after), (503, 7))
        # The server's wait counts where it is longer than the client's own, as far as the longest.
        self.assertEqual([call.args[-1] for call in self.log.warning.call_args_list], [0.01, 0.01])

    async def test_stream(self) -> None:
        """An answer is whole, or StreamBrokenError says how many tokens came."""
        error = b'data: {"error":{"message":"the worker died","code":"unavailable"}}\n\n'
        for response, tokens, want in (
            (chunks(b": keep-alive\n\n", EVENT, EVENT[:9], EVENT[9:] + DONE), 4, None),
            (chunks(EVENT, DONE, end=False) + CUT, 2, None),
            (chunks(EVENT, EVENT), 4, "closed the connection"),
            (chunks(EVENT, end=False) + CUT, 2, "broke off after 2 tokens"),
            (chunks(end=False) + CUT, 0, "broke off after 0 tokens"),
            (chunks(EVENT, error), 2, "the worker died"),
            (chunks(EVENT, b"data: {\n\n"), 2, "not what this version expects"),
            (chunks(EVENT, b"data: {}\n\n"), 2, "not what this version expects"),
            (chunks(EVENT, b"data: 7\n\n"), 2, "not what this version expects"),
            (chunks(EVENT, b"data: " + b"x" * (2 << 20)), 2, "not what this version expects"),
        ):
            with self.subTest(response=response[:300]):
                async with Scripted(generate=[response]) as server:
                    stream = await self.endpoint(server.url).client().generate({"token_ids": [1]})
                    got = 0
                    try:
                        async for event in stream:
                            got += len(event["token_ids"])
                    except StreamBrokenError as broken:
                        self.assertRegex(str(broken), want or "no error")
                        self.assertEqual(broken.tokens, got)
                    else:
                        self.assertIsNone(want)
                    self.assertEqual(got, tokens)

    async def test_closing_a_stream_closes_its_connection(self) -> None:
        async with Scripted(generate=[chunks(EVENT, end=False)]) as server:
            stream = await self.endpoint(server.url).client().generate({"token_ids": [1]})
            await stream.__anext__()
            self.assertFalse(server.closed.is_set())
            await stream.aclose()
            await asyncio.wait_for(server.closed.wait(), 30)

    async def test_connection_is_used_again(self) -> None:
        async with Scripted(generate=[chunks(EVENT, DONE)]) as server:
            client = self.endpoint(server.url).client()
            for _ in range(3):
                async for _event in await client.generate({"token_ids": [1]}):
                    pass
            self.assertEqual((server.count("/generate"), server.connections), (3, 1))

    async def test_what_is_sent(self) -> None:
        async with Scripted(generate=[chunks(DONE)], best_worker=[BEST]) as server:
            names = {"PENSTOCK_SERVER": server.url + "/v1/", "PENSTOCK_API_KEY": "sk-1"}
            with mock.patch.dict(os.environ, names, HTTP_PROXY="http://127.0.0.1:1"):
                client = namespace(NAMES[0]).component(NAMES[1]).endpoint(NAMES[2]).client()
                await client.round_robin({"model": "a", "token_ids": (1, 2**32 - 1), "worker_id": None})
            for send in (client.random, client.generate):
                await send({"token_ids": [2]})
            await client.direct({"token_ids": [1], "router_config_override": {"router_temperature": 1}}, 2**53 - 1)
            config = KvRouterConfig(router_temperature=0.5, overlap_score_weight=2, assume_kv_reuse=False)
            router = KvPushRouter(client.endpoint, 16, config, model="b")
            await router.generate([3], "a", {"max_tokens": 2}, {"top_k": 4}, {"router_temperature": 0}, 5, dp_rank=6)
            await router.best_worker_id([4])
            await client.endpoint.server.close()
        at_random = {"model": "m", "token_ids": [2], "router_config_override": {"router_mode": "random"}}
        override = {"router_temperature": 0, "overlap_score_weight": 2, "assume_kv_reuse": False}
        self.assertEqual(
            [json.loads(body) for _, body in server.requests if body],
            [
                {"model": "a", "token_ids": [1, 2**32 - 1], "router_config_override": {"router_mode": "round-robin"}},
                at_random,
                at_random,
                {
                    "model": "m",
                    "token_ids": [1],
                    "router_config_override": {"router_temperature": 1},
                    "worker_id": 2**53 - 1,
                },
                {
                    "model": "a",
                    "token_ids": [3],
                    "stop_conditions": {"max_tokens": 2},
                    "sampling_options": {"top_k": 4},
                    "router_config_override": override,
                    "worker_id": 5,
                    "dp_rank": 6,
                },
                {"model": "b", "token_ids": [4], "router_config_override": {**override, "router_temperature": 0.5}},
            ],
        )
        self.assertTrue(all("authorization: Bearer sk-1\r\n" in head.replace("A", "a") for head, _ in server.requests))

    async def test_bad_input(self) -> None:
        """What is out of range is refused by name, before anything is sent."""
        where = self.endpoint("http://127.0.0.1:1")
        router, client = KvPushRouter(where, 16), where.client()
        for call, words in (
            (lambda: router.generate([], "m"), "token_ids is empty"),
            (lambda: router.generate([-1], "m"), r"token_ids\[0\] is no whole number from 0 to 4294967295"),
            (lambda: router.generate([1, 2**32], "m"), r"token_ids\[1\]"),
            (lambda: router.generate([True], "m"), r"token_ids\[0\]"),
            (lambda: router.generate([1.0], "m"), r"token_ids\[0\]"),  # type: ignore[list-item]
            (lambda: router.generate("12", "m"), "token_ids is '12'"),  # type: ignore[arg-type]
            (lambda: router.generate([1], ""), "model is ''"),
            (lambda: router.generate([1], "m", {"max_token": 1}), "stop_conditions has no 'max_token'; it has max_tok"),
            (lambda: router.generate([1], "m", {"max_tokens": 0}), "stop_conditions.max_tokens is 0; .* from 1 to"),
            (lambda: router.generate([1], "m", {"ignore_eos": 1}), "stop_conditions.ignore_eos is 1; .* True or False"),
            (lambda: router.generate([1], "m", {"stop": "x"}), "stop_conditions has no 'stop'"),
            (lambda: router.generate([1], "m", 5), "stop_conditions is 5; .* a dict"),  # type: ignore[arg-type]
            (lambda: router.generate([1], "m", None, {"temperature": float("nan")}), "temperature is nan"),
            (lambda: router.generate([1], "m", None, {"temperature": "1"}), "temperature is '1'"),
            (lambda: router.generate([1], "m", None, {"top_p": 1.5}), "top_p is 1.5; .* from 0 to 1"),
            (lambda: router.generate([1], "m", None, {"seed": 2**64}), "seed"),
            (lambda: router.generate([1], "m", None, None, {"router_mode": "fast"}), "router_mode is 'fast'; .* kv,"),
            (lambda: router.generate([1], "m", None, None, {"overlap_weight": 1}), "has no 'overlap_weight'"),
            (lambda: router.generate([1], "m", worker_id=0), "worker_id is 0"),
            (lambda: router.generate([1], "m", worker_id=2**53), "worker_id"),
            (lambda: router.generate([1], "m", worker_id=1, dp_rank=-1), "dp_rank is -1"),
            (lambda: router.best_worker_id([]), "token_ids is empty"),
            (lambda: router.best_worker_id([1], {"moe_query": {"layer_id": -1}}), "moe_query.layer_id is -1"),
            (lambda: router.get_potential_loads([2**32]), "token_ids"),
            (lambda: client.random({"prompt": "x"}), "the request has no 'prompt'; it has model, token_ids"),
            (lambda: client.random({"model": "m"}), "the request has no token_ids"),
            (lambda: client.random({"token_ids": [1], "worker_id": 3}), "chooses its worker itself"),
            (lambda: client.round_robin({"token_ids": [1], "router_config_override": {"router_mode": "kv"}}), "itself"),
            (lambda: client.direct({"token_ids": [1]}, "1"), "worker_id is '1'"),  # type: ignore[arg-type]
        ):
            with self.assertRaisesRegex(ValueError, words):
                await call()
        for make, words in (
            (lambda: KvPushRouter(where, 0), "block_size is 0"),
            (lambda: KvRouterConfig(router_temperature=-1), "router_temperature is -1"),
            (lambda: DistributedRuntime("ftp://x"), "PENSTOCK_SERVER: 'ftp://x' is not a URL like http://127"),
            (lambda: DistributedRuntime("http://user@x"), "not a URL"),
            (lambda: DistributedRuntime("http://x:y"), "not a URL"),
            (lambda: DistributedRuntime(attempts=0), "attempts"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                make()
        with self.assertRaisesRegex(TypeError, "overlap_weight"):
            KvRouterConfig(overlap_weight=1)  # type: ignore[call-arg]

    async def test_urls(self) -> None:
        for given, want in (
            ("gpu1:8000", "http://gpu1:8000"),
            ("https://gpu1/llm/v1/", "https://gpu1/llm"),
            ("http://[::1]:8000/", "http://[::1]:8000"),
        ):
            self.assertEqual(self.endpoint(given).server.url, want)
        with mock.patch.dict(os.environ):
            os.environ.pop("PENSTOCK_SERVER", None)
            where = namespace("a").component("b").endpoint("c")
            self.assertEqual(where.server.url, "http://127.0.0.1:8000")

    async def test_fleets(self) -> None:
        """What the table of workers says decides whether and how a question is asked."""
        other = {"namespace": "n2", "component": "c2", "endpoint": "e2"}
        for table, want, words in (
            (rows({"role": "prefill"}, {"state": "error"}), UnavailableError, "no worker of inference/vllm/generate"),
            (reply(200, {"rows": []}), UnavailableError, "no worker of .*; start one, see `penstock workers`"),
            (rows(other), UnknownNameError, "sends to no namespace 'inference'; to n2$"),
            (rows({"role": "router"}, {"model": "n"}), ValueError, "serves several models; give one as model: m, n"),
            (rows({"block_size": 32}, {"block_size": 64}), ValueError, "have 32 or 64 tokens"),
            (reply(200, {"rows": [{"worker_id": 1}]}), PenstockError, "is of another version"),
            (reply(200, [1]), PenstockError, "is of another version"),
            (b"HTTP/1.1 200 X\r\nContent-Length: 6\r\n\r\n<html>", PenstockError, "did not answer as a Penstock does"),
            (reply(404, "no page"), RefusedError, "answered 404: it has no router API; name a frontend or a router"),
            (refusal(401, "false"), RefusedError, "PENSTOCK_API_KEY must be a key with admin: true"),
        ):
            with self.subTest(words):
                async with Scripted(workers=[table], best_worker=[BEST]) as server:
                    with self.assertRaisesRegex(want, words):
                        await KvPushRouter(self.endpoint(server.url), 16).best_worker_id([1])
        # A fleet which has no worker yet is asked again; after a 404 the table is read again.
        gone = reply(404, {"error": {"message": "the model m is not served", "code": None}})
        tables = [reply(200, {"rows": []}), rows(), rows({"model": "n"})]
        async with Scripted(workers=tables, best_worker=[gone, BEST]) as server:
            router = KvPushRouter(self.endpoint(server.url), 16)
            with self.assertRaisesRegex(RefusedError, "the model m is not served") as caught:
                await router.best_worker_id([1])
            self.assertEqual(caught.exception.code, "")
            self.assertEqual(await router.best_worker_id([1]), (1, 2))
            self.assertEqual([json.loads(body)["model"] for _, body in server.requests if body], ["m", "n"])
            self.assertEqual(server.count("/workers"), 3)


if __name__ == "__main__":
    unittest.main()

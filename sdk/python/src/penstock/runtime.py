"""The fleet behind a frontend or router, by namespace, component and endpoint."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from penstock.checks import WORKER_ID, Fields, check_request
from penstock.errors import PenstockError, UnavailableError, UnknownNameError
from penstock.handlers import Handler, ModelCard
from penstock.publisher import KvEventPublisher
from penstock.serve import ServedEndpoint, stop_all
from penstock.server import GenerateEvent, Server


class DistributedRuntime:
    """A fleet, as one frontend or router knows it.

    ``server`` is its URL, by default ``PENSTOCK_SERVER`` or http://127.0.0.1:8000; ``api_key`` is by default
    ``PENSTOCK_API_KEY``. A call which fails before its answer begins is made up to ``attempts`` times. Certificates are
    checked by ``ssl_context``, by default with the system's authorities.
    """

    def __init__(
        self,
        server: str | None = None,
        api_key: str | None = None,
        *,
        attempts: int = 6,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._server = Server(server, api_key, attempts, ssl_context)

    @classmethod
    def detached(cls) -> DistributedRuntime:
        """Return the fleet which the environment names. Nothing is sent before the first call."""
        return cls()

    def namespace(self, name: str) -> Namespace:
        return Namespace(self._server, name)

    def shutdown(self) -> None:
        """Leave the fleet with all endpoints which are served. Signal handlers and other threads may call it."""
        stop_all(self._server)

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        await self._server.close()

    async def __aenter__(self) -> DistributedRuntime:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def namespace(name: str) -> Namespace:
    """Return a namespace of the fleet which the environment names."""
    return DistributedRuntime.detached().namespace(name)


class Namespace:
    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self.name = name

    def component(self, name: str) -> Component:
        return Component(self._server, self.name, name)


class Component:
    def __init__(self, server: Server, namespace: str, name: str) -> None:
        self._server = server
        self._namespace = namespace
        self.name = name

    def endpoint(self, name: str) -> Endpoint:
        return Endpoint(self._server, (self._namespace, self.name, name))


@dataclass(frozen=True)
class Worker:
    """A worker, or a rank of it, which takes requests."""

    worker_id: int
    dp_rank: int
    model: str
    block_size: int


class Endpoint:
    """An endpoint of a component's workers. ``path`` is its namespace, component and name."""

    def __init__(self, server: Server, path: tuple[str, str, str]) -> None:
        self.server = server
        self.path = path
        self._workers: list[Worker] = []
        self._as_of = -1  # server.failures when _workers was read

    def client(self) -> Client:
        return Client(self)

    async def serve_endpoint(
        self,
        handler: Handler,
        card: ModelCard,
        *,
        kv_publisher: KvEventPublisher | None = None,
        graceful_shutdown: bool = True,
        worker_args: Sequence[str] = (),
    ) -> None:
        """Serve requests of the fleet with a function, until SIGTERM or ``shutdown`` of the runtime.

        ``handler(request, context)`` returns an async iterator of dicts with ``token_ids``, and with ``finish_reason``
        and ``cached_tokens`` where they are known. Its task is cancelled when no more tokens are wanted.
        ``kv_publisher`` publishes what its KV cache has. With ``graceful_shutdown`` running requests finish first, else
        other workers go on with them at once. ``worker_args`` are further flags of `penstock worker`, which runs beside
        this process: PENSTOCK_BIN names the program. Raises ValueError if the publisher does not fit the card, and
        WorkerExitError if the worker ends by itself.
        """
        args = (handler, card, kv_publisher, graceful_shutdown, worker_args)
        await ServedEndpoint(self.server, self.path, *args).run()

    async def find_workers(self, fresh: bool = False) -> list[Worker]:
        """Return the workers, as last read unless that may not hold any more.

        Raises UnknownNameError if the fleet has no such endpoint, UnavailableError if it has no worker there.
        """
        if fresh or self._as_of != self.server.failures:
            self._workers = await self.server.repeat(self._read_workers)
            self._as_of = self.server.failures
        return self._workers

    async def find_model(self) -> str:
        """Return the name of the only model."""
        models = sorted({worker.model for worker in await self.find_workers()})
        if len(models) > 1:
            raise ValueError(f"{self.server.url} serves several models; give one as model: {', '.join(models)}")
        return models[0]

    async def generate(self, request: dict[str, Any]) -> AsyncGenerator[GenerateEvent, None]:
        """Send a checked request."""
        await self.find_workers()
        if "model" not in request:
            request = {**request, "model": await self.find_model()}
        return await self.server.stream("/v1/router/generate", request)

    async def _read_workers(self) -> list[Worker]:
        answer = await self.server.ask("GET", "/v1/router/workers", None)
        workers: list[Worker] = []
        try:
            rows = answer["rows"]
            self._check_names([(row["namespace"], row["component"], row["endpoint"]) for row in rows])
            for row in rows:
                serves = row["role"] not in ("prefill", "encode") and row["state"] not in ("error", "unfit")
                if serves and (row["namespace"], row["component"], row["endpoint"]) == self.path:
                    workers.append(Worker(row["worker_id"], row["dp_rank"], row["model"], row["block_size"]))
        except (TypeError, KeyError) as error:
            raise self.server.other_version(error) from error
        if not workers:
            where = "/".join(self.path)
            raise UnavailableError(
                f"{self.server.url} has no worker of {where} which takes requests; start one, see `penstock workers`",
                503,
                retryable=True,
            )
        return workers

    def _check_names(self, known: list[tuple[str, str, str]]) -> None:
        """Raise UnknownNameError with the names which exist if the path is not one of them. None say nothing."""
        for level, what in enumerate(("namespace", "component", "endpoint")):
            names = sorted({path[level] for path in known})
            if known and self.path[level] not in names:
                place = "".join(f" in {name}" for name in self.path[:level][-1:])
                raise UnknownNameError(
                    f"{self.server.url} sends to no {what} {self.path[level]!r}{place}; to {', '.join(names)}"
                )
            known = [path for path in known if path[level] == self.path[level]]


class Client:
    """Sends requests to the workers of an endpoint.

    A request is a dict with ``token_ids`` and, as the members of docs/router-api.md, ``model``, ``stop_conditions``,
    ``sampling_options``, ``router_config_override``, ``worker_id`` and ``dp_rank``. Each method returns an iterator of
    the answer's events. Closing it ends the request.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def __await__(self) -> Generator[Any, None, Client]:
        """Return the client: ``await endpoint.client()`` is the same."""
        return self
        yield  # makes this a generator, which __await__ must return

    async def generate(self, input: Fields) -> AsyncGenerator[GenerateEvent, None]:
        """Send a request to a worker at random."""
        return await self.random(input)

    async def random(self, input: Fields) -> AsyncGenerator[GenerateEvent, None]:
        """Send a request to a worker at random."""
        return await self._generate_by(input, "random")

    async def round_robin(self, input: Fields) -> AsyncGenerator[GenerateEvent, None]:
        """Send a request to the next worker. The frontend or router counts, for all its clients together."""
        return await self._generate_by(input, "round-robin")

    async def direct(self, input: Fields, worker_id: int) -> AsyncGenerator[GenerateEvent, None]:
        """Send a request to one worker."""
        return await self.endpoint.generate(check_request({**input, "worker_id": WORKER_ID("worker_id", worker_id)}))

    async def worker_ids(self) -> list[int]:
        """Return the ids of the workers which are there now."""
        return sorted({worker.worker_id for worker in await self.endpoint.find_workers(fresh=True)})

    async def _generate_by(self, input: Fields, mode: str) -> AsyncGenerator[GenerateEvent, None]:
        request = check_request(input)
        override = request.setdefault("router_config_override", {})
        if override.setdefault("router_mode", mode) != mode or "worker_id" in request:
            raise ValueError(f"the request chooses its worker itself, and so does {mode}: use KvPushRouter or direct")
        return await self.endpoint.generate(request)

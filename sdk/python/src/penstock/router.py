"""Generation from token ids, by the workers' caches and load."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypedDict

from penstock.checks import OVERRIDE, Fields, TokenIds, check_request, integer, members, prompt
from penstock.config import KvRouterConfig
from penstock.errors import ConfigError
from penstock.runtime import Endpoint
from penstock.server import GenerateEvent

_OVERRIDE = members(OVERRIDE)


class PotentialLoad(TypedDict):
    """What a worker would have to do with a prompt added."""

    worker_id: int
    dp_rank: int
    potential_prefill_tokens: int
    potential_decode_blocks: int
    active_requests: int


class KvPushRouter:
    """Sends prompts of token ids to the workers of an endpoint, as the router of its frontend chooses.

    ``block_size`` is the number of tokens in a block, which must be the workers'. ``model`` is for the questions; it
    can be left out if the workers serve one model.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        block_size: int,
        kv_router_config: KvRouterConfig | None = None,
        *,
        model: str | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._block_size: int = integer(1, 2**20)("block_size", block_size)
        self._config = kv_router_config or KvRouterConfig()
        self._model = model
        self._checked = -1  # endpoint.server.failures when the fleet was compared with what is given here

    async def generate(
        self,
        token_ids: TokenIds,
        model: str,
        stop_conditions: Fields | None = None,
        sampling_options: Fields | None = None,
        router_config_override: Fields | None = None,
        worker_id: int | None = None,
        *,
        dp_rank: int | None = None,
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Return an iterator of the events of an answer. Closing it ends the request.

        ``worker_id`` names the worker which must serve, else the router chooses one.
        """
        request = check_request(
            {
                "model": model,
                "token_ids": token_ids,
                "stop_conditions": stop_conditions,
                "sampling_options": sampling_options,
                "router_config_override": self._merge(router_config_override),
                "worker_id": worker_id,
                "dp_rank": dp_rank,
            }
        )
        await self._check_fleet()
        return await self._endpoint.generate(request)

    async def best_worker_id(
        self, token_ids: TokenIds, router_config_override: Fields | None = None
    ) -> tuple[int, int]:
        """Return the worker which a prompt would go to, and how many of its blocks that worker has."""
        answer = await self._ask("best_worker", token_ids, router_config_override)
        try:
            return answer["worker_id"], answer["overlap_blocks"]
        except (TypeError, KeyError) as error:
            raise self._endpoint.server.other_version(error) from error

    async def get_potential_loads(self, token_ids: TokenIds) -> list[PotentialLoad]:
        """Return the load of each worker which could serve a prompt, with the prompt."""
        loads: list[PotentialLoad] = await self._ask("potential_loads", token_ids, None)
        return loads

    async def _ask(self, question: str, token_ids: TokenIds, override: Fields | None) -> Any:
        body = {"token_ids": prompt("token_ids", token_ids), "router_config_override": self._merge(override)}
        await self._check_fleet()
        body["model"] = self._model or await self._endpoint.find_model()
        return await self._endpoint.server.post(f"/v1/router/{question}", body)

    def _merge(self, override: Fields | None) -> dict[str, Any]:
        """Return the override of a request over the defaults of the configuration."""
        given: dict[str, Any] = _OVERRIDE("router_config_override", override or {})
        return {**self._config.override(), **given}

    async def _check_fleet(self) -> None:
        """Raise an error if the fleet is not what the caller says."""
        server = self._endpoint.server
        if self._checked == server.failures:
            return
        sizes = sorted({worker.block_size for worker in await self._endpoint.find_workers()})
        if self._block_size not in sizes:
            raise ConfigError(
                f"block_size is {self._block_size}, and the blocks of {'/'.join(self._endpoint.path)} have "
                f"{' or '.join(map(str, sizes))} tokens: give that, or start its workers with another --block-size"
            )
        await self._config.check_server(server)
        self._checked = server.failures

"""A toy engine as a worker: the next token is a function of the tokens before it, so that any worker gives the same."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fleet import NAMES
from penstock import Context, DistributedRuntime, KvEventPublisher, ModelCard, StoredBlock

BLOCK, CAPACITY = 16, 512  # tokens in a block, blocks in the cache
PAUSE = 10  # tokens of output after which an answer waits for the gate
FORK = 7  # the first token of a prompt for which a child is started, which waits for SIGTERM
CARD = ModelCard("toy", "penstock-sim", block_size=BLOCK, total_blocks=CAPACITY, context_length=4096)


class Toy:
    def __init__(self, publisher: KvEventPublisher, gate: Path) -> None:
        self._publisher = publisher
        self._gate = gate  # a file
        self._cached: dict[int, None] = {}  # hashes of blocks, the least recently used one first

    def store(self, tokens: list[int]) -> int:
        """Store the full blocks of a prompt, and return how many tokens of it were there."""
        found, parent = 0, None
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            block = tokens[start : start + BLOCK]
            value = hash((parent, *block)) % 2**63
            if value in self._cached:
                del self._cached[value]
                found += BLOCK
            else:
                self._publisher.publish_stored(0, [StoredBlock(value, block)], parent)
            self._cached[value] = None
            parent = value
        while len(self._cached) > CAPACITY:
            oldest = next(iter(self._cached))
            del self._cached[oldest]
            self._publisher.publish_removed(0, [oldest])
        return found

    async def generate(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        tokens = list(request["token_ids"])
        if tokens[0] == FORK:
            if (child := os.fork()) == 0:
                signal.pause()
            print(child, flush=True)
        cached = self.store(tokens)
        try:
            for i in range(request["stop_conditions"]["max_tokens"]):
                while i == PAUSE and not self._gate.exists():
                    await asyncio.sleep(0.01)  # until the next look
                tokens.append(40 + sum(tokens) % 83)
                yield {"token_ids": tokens[-1:], "cached_tokens": cached}
        except asyncio.CancelledError:
            print("cancelled", context.is_cancelled(), flush=True)
            raise


async def main(gate: str, *worker_args: str) -> None:
    endpoint = DistributedRuntime.detached().namespace(NAMES[0]).component(NAMES[1]).endpoint(NAMES[2])
    with KvEventPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", block_size=BLOCK) as publisher:
        toy = Toy(publisher, Path(gate))
        await endpoint.serve_endpoint(toy.generate, CARD, kv_publisher=publisher, worker_args=worker_args)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

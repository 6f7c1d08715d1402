"""What an engine says of its blocks, and the events of docs/format/engine-events.md which say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Union

# A worker: its id, for its rank 0, or its id and rank.
Worker = Union[int, tuple[int, int]]

# An event as a map of the wire format.
Event = dict[str, Any]

STATES = ("local_gpu", "in_transit", "cxl_pooled", "evicted")

# The largest id of a worker, number of a pool and length of an access list which Penstock reads.
MAX_WORKER = 2**53 - 1
MAX_NUMBER = 2**32 - 1
MAX_ACCESS = 1024


@dataclass
class MoeMetadata:
    """The expert under which an engine reports a block. Numbers are below 2**32."""

    layer_id: int
    expert_id: int
    expert_group: int | None = None

    def wire(self) -> Event:
        event = {"layer_id": _number(self.layer_id), "expert_id": _number(self.expert_id)}
        if self.expert_group is not None:
            event["expert_group"] = _number(self.expert_group)
        return event


@dataclass
class CxlMemoryMetadata:
    """The state of a stored block in a memory pool. An empty list of workers says nothing about access."""

    state: str = "local_gpu"
    pool_id: int | None = None
    accessible_workers: Sequence[Worker] = ()

    def wire(self) -> Event:
        event = transition([], self.state, self.pool_id, self.accessible_workers or None)
        del event["type"], event["block_hashes"]
        event["state"] = event.pop("new_state")
        return event


@dataclass
class StoredBlock:
    """A block which the engine stored: its hash, below 2**64 and the engine's own choice, and its tokens."""

    block_hash: int
    token_ids: Sequence[int]
    moe_metadata: MoeMetadata | None = None
    cxl_metadata: CxlMemoryMetadata | None = None


@dataclass
class Placement:
    """What all blocks of one stored event share."""

    lora_name: str | None = None
    cache_salt: str | None = None
    medium: str = "GPU"
    extra: Event = field(default_factory=dict)


def stored(blocks: Sequence[StoredBlock], parent_hash: int | None, block_size: int, place: Placement) -> Event:
    """Return the event which says that blocks follow another one, or begin a prompt."""
    tokens = [token for block in blocks for token in block.token_ids]
    if any(len(block.token_ids) != block_size for block in blocks):
        raise ValueError(f"every stored block must have {block_size} tokens, the block size of the publisher")
    event: Event = {
        "type": "BlockStored",
        "block_hashes": [block.block_hash for block in blocks],
        "parent_block_hash": parent_hash,
        "token_ids": tokens,
        "block_size": block_size,
        "lora_name": place.lora_name,
        "medium": place.medium,
    }
    if place.cache_salt is not None:
        event["cache_salt"] = place.cache_salt
    if any(block.moe_metadata for block in blocks):
        event["moe_metadata"] = [block.moe_metadata and block.moe_metadata.wire() for block in blocks]
    if any(block.cxl_metadata for block in blocks):
        event["cxl_metadata"] = [block.cxl_metadata and block.cxl_metadata.wire() for block in blocks]
    return event


def removed(block_hashes: Sequence[int], medium: str) -> Event:
    """Return the event which says that one copy of each block is gone from a medium."""
    return {"type": "BlockRemoved", "block_hashes": list(block_hashes), "medium": medium}


def cleared(medium: str) -> Event:
    """Return the event which says that a medium is empty."""
    event: Event = {"type": "AllBlocksCleared"}
    if medium != "GPU":
        event["medium"] = medium
    return event


def transition(
    block_hashes: Sequence[int], new_state: str, pool_id: int | None, accessible_workers: Sequence[Worker] | None
) -> Event:
    """Return the event which says that blocks changed their state in a memory pool."""
    if new_state not in STATES:
        raise ValueError(f"new_state {new_state!r} must be one of {', '.join(STATES)}")
    event: Event = {"type": "CxlStateTransition", "block_hashes": list(block_hashes), "new_state": new_state}
    if pool_id is not None:
        event["pool_id"] = _number(pool_id)
    if accessible_workers is not None:
        event["accessible_workers"] = [_worker(worker) for worker in accessible_workers]
        if len(event["accessible_workers"]) > MAX_ACCESS:
            raise ValueError(f"accessible_workers has more than {MAX_ACCESS} workers")
    return event


def _number(value: int) -> int:
    if not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value} must be between 0 and {MAX_NUMBER}")
    return value


def _worker(worker: Worker) -> int | list[int]:
    worker_id, rank = worker if isinstance(worker, tuple) else (worker, 0)
    if not 0 <= worker_id <= MAX_WORKER:
        raise ValueError(f"worker id {worker_id} must be between 0 and {MAX_WORKER}")
    return [worker_id, _number(rank)] if rank else worker_id

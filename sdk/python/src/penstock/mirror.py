"""The state of an engine's cache, as the events say it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock import events
from penstock.events import Event


@dataclass
class _Block:
    event: Event  # the stored event of this block alone
    parent: int | None
    copies: dict[str, int] = field(default_factory=dict)  # by medium
    pooled: Event | None = None  # the transition which says its state in a pool
    children: int = 0


class Mirror:
    """Apply events and describe their sum in events.

    A block is remembered while it has a copy, is in a pool, or comes before a remembered block: a reader must know the
    blocks before a block in order to know what it is.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._early: dict[int, int] = {}  # remembered blocks which came before their parent, by the parent
        self._media: dict[str, None] = {"GPU": None}
        self._pools: dict[int, None] = {}

    def apply(self, event: Event) -> None:
        """Apply one event."""
        kind = event["type"]
        medium = event.get("medium") or "GPU"
        if kind != "CxlStateTransition":
            self._media[medium] = None
        if kind == "BlockStored":
            self._store(event, medium)
        elif kind == "BlockRemoved":
            for block_hash in event["block_hashes"]:
                self._remove_copy(block_hash, medium)
        elif kind == "AllBlocksCleared":
            for block_hash, block in list(self._blocks.items()):
                block.copies.pop(medium, None)
                self._drop_unused(block_hash)
        else:
            self._move(event)

    def _store(self, event: Event, medium: str) -> None:
        parent = event["parent_block_hash"]
        size = event["block_size"]
        for i, block_hash in enumerate(event["block_hashes"]):
            block = self._blocks.get(block_hash)
            if block is None:
                block = self._blocks[block_hash] = _Block({}, parent, children=self._early.pop(block_hash, 0))
                self._count_child(parent, 1)
            label = (event.get("moe_metadata") or {i: None})[i] or block.event.get("moe_metadata")
            block.event = {
                **event,
                "block_hashes": [block_hash],
                "parent_block_hash": block.parent,
                "token_ids": event["token_ids"][i * size : (i + 1) * size],
            }
            for name in ("moe_metadata", "cxl_metadata"):
                block.event.pop(name, None)
            if label is not None:
                block.event["moe_metadata"] = label
            block.copies[medium] = block.copies.get(medium, 0) + 1
            state = (event.get("cxl_metadata") or {i: None})[i]
            if state is not None:
                fields = {name: value for name, value in state.items() if name != "state"}
                self._move(
                    {"type": "CxlStateTransition", "block_hashes": [block_hash], "new_state": state["state"], **fields}
                )
            parent = block_hash

    def _remove_copy(self, block_hash: int, medium: str) -> None:
        block = self._blocks.get(block_hash)
        if block is None or medium not in block.copies:
            return
        block.copies[medium] -= 1
        if block.copies[medium] == 0:
            del block.copies[medium]
        self._drop_unused(block_hash)

    def _move(self, event: Event) -> None:
        state = event["new_state"]
        pool = event.get("pool_id")
        if pool is not None:
            self._pools[pool] = None
        hashes = event["block_hashes"]
        leaves = state in ("local_gpu", "evicted")
        if not hashes and leaves:
            hashes = [h for h, block in self._blocks.items() if block.pooled and block.pooled["pool_id"] == pool]
        for block_hash in list(hashes):
            block = self._blocks.get(block_hash)
            if block is None:
                continue
            before = block.pooled
            if leaves:
                if before is not None and pool in (None, before["pool_id"]):
                    block.pooled = None
                    self._drop_unused(block_hash)
                continue
            into: int | None = pool
            if into is None and before is not None:
                into = before["pool_id"]
            if into is None:
                continue
            access = event.get("accessible_workers")
            if access is None and before is not None and before["pool_id"] == into:
                access = before.get("accessible_workers")
            block.pooled = events.transition([block_hash], state, into, None)
            if access is not None:
                block.pooled["accessible_workers"] = access

    def _drop_unused(self, block_hash: int | None) -> None:
        while block_hash is not None:
            block = self._blocks.get(block_hash)
            if block is None or block.copies or block.pooled or block.children:
                return
            del self._blocks[block_hash]
            block_hash = block.parent
            self._count_child(block_hash, -1)

    def _count_child(self, parent: int | None, change: int) -> None:
        if parent is None:
            return
        above = self._blocks.get(parent)
        if above is not None:
            above.children += change
        elif self._early.get(parent, 0) + change > 0:
            self._early[parent] = self._early.get(parent, 0) + change
        else:
            self._early.pop(parent, None)

    def describe(self) -> list[Event]:
        """Return events after which a reader knows exactly this state, whatever it knew before."""
        out = [events.cleared(medium) for medium in self._media]
        out += [events.transition([], "local_gpu", pool, None) for pool in self._pools]
        gone: list[int] = []
        for block_hash, block in self._parents_first():
            for medium, copies in (block.copies or {"GPU": 1}).items():
                for _ in range(copies):
                    _append_stored(out, {**block.event, "medium": medium})
            if not block.copies:
                gone.append(block_hash)
        for block in self._blocks.values():
            if block.pooled is not None:
                _append_moved(out, block.pooled)
        gone.reverse()
        out += [events.removed(gone[i : i + _RUN], "GPU") for i in range(0, len(gone), _RUN)]
        return out

    def _parents_first(self) -> Iterator[tuple[int, _Block]]:
        followers: dict[int | None, list[int]] = {}
        for block_hash, block in self._blocks.items():
            parent = block.parent if block.parent in self._blocks else None
            followers.setdefault(parent, []).append(block_hash)
        open_hashes = followers.get(None, [])[::-1]
        while open_hashes:
            block_hash = open_hashes.pop()
            yield block_hash, self._blocks[block_hash]
            open_hashes += followers.get(block_hash, [])[::-1]


# The largest number of blocks in one event of a description.
_RUN = 1024


def _append_stored(out: list[Event], event: Event) -> None:
    """Append the stored event of one block, or extend the last event if the block follows its last one."""
    last = out[-1]
    shared = ("type", "block_size", "lora_name", "medium", "cache_salt")
    if (
        last["type"] == "BlockStored"
        and event["parent_block_hash"] == last["block_hashes"][-1]
        and len(last["block_hashes"]) < _RUN
        and all(last.get(name) == event.get(name) for name in shared)
    ):
        last["block_hashes"].append(event["block_hashes"][0])
        last["token_ids"] += event["token_ids"]
    else:
        last = {**event, "block_hashes": list(event["block_hashes"]), "token_ids": list(event["token_ids"])}
        last.pop("moe_metadata", None)
        out.append(last)
    label = event.get("moe_metadata")
    if label is not None or "moe_metadata" in last:
        labels = last.setdefault("moe_metadata", [])
        labels += [None] * (len(last["block_hashes"]) - 1 - len(labels))
        labels.append(label)


def _append_moved(out: list[Event], event: Event) -> None:
    """Append the transition of one block, or add the block to the last event if that is the same transition."""
    last = out[-1]
    same = ("type", "new_state", "pool_id", "accessible_workers")
    hashes = last.get("block_hashes")
    if hashes and len(hashes) < _RUN and all(last.get(name) == event.get(name) for name in same):
        hashes.append(event["block_hashes"][0])
    else:
        out.append({**event, "block_hashes": list(event["block_hashes"])})

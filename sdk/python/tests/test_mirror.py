"""The mirror's description against the events which it sums up: python -m unittest discover sdk/python/tests."""

import random
import unittest
from collections import Counter
from typing import Any

from penstock import StoredBlock, events
from penstock.mirror import Mirror
from penstock.publisher import divide_description

SIZE = 2


class Reader:
    """What a reader knows: copies by block and medium, and the state in a pool."""

    def __init__(self) -> None:
        self.copies: Counter[tuple[int, str]] = Counter()
        self.pooled: dict[int, tuple[str, int]] = {}

    def apply(self, event: dict[str, Any]) -> None:
        medium = event.get("medium") or "GPU"
        if event["type"] == "BlockStored":
            self.copies.update((h, medium) for h in event["block_hashes"])
        elif event["type"] == "BlockRemoved":
            for h in event["block_hashes"]:
                self.copies[h, medium] = max(0, self.copies[h, medium] - 1)
        elif event["type"] == "AllBlocksCleared":
            for h, m in list(self.copies):
                if m == medium:
                    del self.copies[h, m]
        else:
            leaves = event["new_state"] in ("local_gpu", "evicted")
            all_of_pool = [h for h, (_, pool) in self.pooled.items() if pool == event["pool_id"]]
            for h in event["block_hashes"] or (all_of_pool if leaves else []):
                if not leaves:
                    self.pooled[h] = (event["new_state"], event["pool_id"])
                elif self.pooled.get(h, ("", -1))[1] == event["pool_id"]:
                    del self.pooled[h]

    def state(self) -> tuple[dict[tuple[int, str], int], dict[int, tuple[str, int]]]:
        return {key: n for key, n in self.copies.items() if n > 0}, self.pooled


def stored(hashes: list[int], parent: int | None, medium: str = "GPU") -> dict[str, Any]:
    blocks = [StoredBlock(h, [h] * SIZE) for h in hashes]
    return events.stored(blocks, parent, SIZE, events.Placement(None, None, medium))


class MirrorTest(unittest.TestCase):
    def test_describes_histories(self) -> None:
        """After a description a reader knows what one knows which has applied every event, whatever it knew before."""
        described = 0
        for seed in range(300):
            rng = random.Random(seed)
            chains = [[c * 100 + i for i in range(6)] for c in range(4)]
            mirror, live = Mirror(), Reader()
            for _ in range(60):
                chain, medium = rng.choice(chains), rng.choice(["GPU", "GPU", "CPU"])
                at, to = sorted(rng.sample(range(7), 2))
                kind = rng.randrange(10)
                if kind < 5:  # also a block whose parent comes later
                    event = stored(chain[at:to], chain[at - 1] if at else None, medium)
                elif kind < 8:
                    known = [h for h in chain[at:to] if live.copies[h, medium] > 0]
                    event = events.removed(known, medium)
                elif kind == 8:
                    known = [h for h in chain[at:to] if live.copies[h, "GPU"] + live.copies[h, "CPU"] > 0]
                    if not known:
                        continue
                    event = events.transition(known, rng.choice(["in_transit", "cxl_pooled"]), rng.randrange(2), None)
                else:
                    event = rng.choice([events.cleared(medium), events.transition([], "evicted", rng.randrange(2), None)])
                mirror.apply(event)
                live.apply(event)
            late = Reader()
            late.copies[1, "GPU"] = 1
            for event in mirror.describe():
                late.apply(event)
            self.assertEqual(live.state(), late.state(), f"seed {seed}")
            described += len(live.state()[0])
        self.assertGreater(described, 1000)

    def test_parent_after_child(self) -> None:
        """A parent which comes after its child stays while the child does, and no longer."""
        mirror = Mirror()
        for event in (stored([2], 1), stored([1], None), events.removed([1], "GPU")):
            mirror.apply(event)
        self.assertEqual(list(mirror._blocks), [2, 1])
        mirror.apply(events.removed([2], "GPU"))
        self.assertEqual(mirror._blocks, {})
        mirror.apply(stored([2], 1))
        mirror.apply(events.removed([2], "GPU"))
        self.assertEqual(mirror._early, {})


class DivideTest(unittest.TestCase):
    def test_batches_are_bounded(self) -> None:
        """Batches have at most 2^16 blocks, and more where there are too few numbers for so small ones."""
        described = [{"block_hashes": [0] * 1024, "token_ids": [0] * 16} for _ in range(200)]
        chunks = divide_description(described, 1000)
        self.assertEqual([len(chunk) for chunk in chunks], [64, 64, 64, 8])
        self.assertEqual(len(divide_description(described, 2)), 2)
        tokens = [{"block_hashes": [0], "token_ids": [0] * (1 << 20)} for _ in range(5)]
        self.assertEqual([len(chunk) for chunk in divide_description(tokens, 9)], [2, 2, 1])
        self.assertEqual(divide_description([], 1), [[]])


if __name__ == "__main__":
    unittest.main()

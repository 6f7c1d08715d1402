"""A publisher of KV cache events over ZeroMQ, in the form in which vLLM publishes them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import msgpack  # type: ignore[import-untyped]
import zmq

from penstock import events
from penstock.events import Event, StoredBlock, Worker
from penstock.mirror import Mirror

_END = b"\xff" * 8
# What one batch of a description has at most: events, blocks and tokens. A reader takes 2^20 blocks and 2^24 tokens.
_CHUNK = (4096, 1 << 16, 1 << 21)
_FIRST_REPEAT, _LAST_REPEAT = 1.0, 60.0  # seconds until the last batch is sent again, doubled each time


class KvEventPublisher:
    """Publish what an engine stores, removes and moves between memories.

    Every call sends one numbered batch on the PUB socket ``endpoint``. The ROUTER socket ``replay_endpoint`` repeats
    the last ``buffer_batches`` of them to a reader which asks, and answers with a description of the whole cache before
    them if it asks for older ones: after a lost message, a slow reader or a restart of the reader, the reader knows
    what was published. While nothing is published the last batch is sent again, after 1 s and then ever more rarely: a
    reader which has it drops it, and one which has lost it, with others before it, asks for them. A restart of the
    engine begins a new publisher, whose numbers begin at 0.

    ``block_size`` is the number of tokens in a block, ``rank`` the data-parallel rank, ``queue`` the number of messages
    which wait for a slow reader before further ones are lost to it. The memory is the buffer's and, for each block
    which the cache has, its tokens. All methods may be called from any thread; they do not wait for readers.

    An ``event_id`` is the caller's own number of the event, for its logs; batches are numbered by the publisher.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:5557",
        replay_endpoint: str | None = None,
        *,
        block_size: int = 16,
        topic: str = "",
        rank: int | None = None,
        buffer_batches: int = 10_000,
        queue: int = 100_000,
    ) -> None:
        if block_size < 1 or buffer_batches < 1 or queue < 1:
            raise ValueError("block_size, buffer_batches and queue must be at least 1")
        self.block_size = block_size
        self._topic = topic.encode()
        self._rank = rank
        self._limit = buffer_batches
        self._lock = threading.Lock()
        self._next = 0
        self._buffer: deque[tuple[int, bytes, Event]] = deque()
        self._dropped: tuple[int, bytes] | None = None  # the batch before the buffer
        self._base = Mirror()  # the state after the batches which are not in the buffer any more
        self._repeat_at = 0.0  # when the last batch is sent again, of time.monotonic
        self._pause = _FIRST_REPEAT
        self._closed = threading.Event()
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.SNDHWM, queue)
        self._pub.setsockopt(zmq.LINGER, 1000)
        self._thread: threading.Thread | None = None
        try:
            self._pub.bind(endpoint)
            self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
            self.replay_endpoint = None if replay_endpoint is None else self._start_replay(replay_endpoint)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise

    def publish_stored(
        self,
        event_id: int,
        blocks: Sequence[StoredBlock],
        parent_hash: int | None = None,
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        medium: str = "GPU",
    ) -> None:
        """Say that blocks were stored, one after another, after the block ``parent_hash`` or at a prompt's start.

        ``medium`` is where: ``GPU``, ``CPU``, ``DISK``. Raises ValueError if a block has not ``block_size`` tokens.
        """
        place = events.Placement(lora_name, cache_salt, medium)
        self._publish(events.stored(blocks, parent_hash, self.block_size, place))

    def publish_removed(self, event_id: int, block_hashes: Sequence[int], *, medium: str = "GPU") -> None:
        """Say that one copy of each block was removed from a medium."""
        self._publish(events.removed(block_hashes, medium))

    def publish_all_cleared(self, event_id: int, *, medium: str = "GPU") -> None:
        """Say that a medium has no blocks any more. Memory pools are not affected."""
        self._publish(events.cleared(medium))

    def publish_cxl_state_transition(
        self,
        event_id: int,
        block_hashes: Sequence[int],
        new_state: str,
        pool_id: int | None = None,
        accessible_workers: Sequence[Worker] | None = None,
    ) -> None:
        """Say that blocks changed their state in a memory pool.

        ``new_state`` is ``local_gpu``, ``in_transit``, ``cxl_pooled`` or ``evicted``. ``accessible_workers`` are the
        workers which can attach these blocks. Without ``pool_id`` or ``accessible_workers`` the last transition of a
        block with one counts; without any, every worker which attached the pool can attach the block. Raises
        ValueError for another state or a number out of range.
        """
        self._publish(events.transition(block_hashes, new_state, pool_id, accessible_workers))

    def close(self) -> None:
        """Close the sockets, after at most a second in which the last messages are sent."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._pub.close()
        self._context.term()

    def __enter__(self) -> KvEventPublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _publish(self, event: Event) -> None:
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the publisher is closed")
            payload = self._encode([event])
            self._pub.send_multipart([self._topic, self._next.to_bytes(8, "big"), payload])
            self._buffer.append((self._next, payload, event))
            self._next += 1
            self._pause = _FIRST_REPEAT
            self._repeat_at = time.monotonic() + self._pause
            while len(self._buffer) > self._limit:
                number, old, applied = self._buffer.popleft()
                self._dropped = (number, old)
                self._base.apply(applied)

    def _encode(self, batch: list[Event]) -> bytes:
        payload: bytes = msgpack.packb([time.time(), batch, self._rank])
        return payload

    def _start_replay(self, endpoint: str) -> str:
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a reader which is gone is an error, and a slow one is waited for
        router.setsockopt(zmq.SNDTIMEO, 5000)
        router.setsockopt(zmq.LINGER, 1000)
        router.bind(endpoint)
        bound = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._serve_replay, args=(router,), name="penstock-replay", daemon=True)
        self._thread.start()
        return bound

    def _serve_replay(self, router: zmq.Socket[bytes]) -> None:
        with router:
            while not self._closed.is_set():
                self._repeat_last()
                if not router.poll(100):
                    continue
                frames = router.recv_multipart()
                if len(frames) != 3 or len(frames[2]) != 8:
                    continue
                try:
                    for number, payload in self._answer(int.from_bytes(frames[2], "big")):
                        router.send_multipart([frames[0], b"", number.to_bytes(8, "big"), payload])
                    router.send_multipart([frames[0], b"", _END, b""])
                except zmq.ZMQError:
                    continue  # the reader is gone, or reads nothing; it will ask again

    def _repeat_last(self) -> None:
        with self._lock:
            if not self._buffer or time.monotonic() < self._repeat_at:
                return
            number, payload, _ = self._buffer[-1]
            self._pub.send_multipart([self._topic, number.to_bytes(8, "big"), payload])
            self._pause = min(2 * self._pause, _LAST_REPEAT)
            self._repeat_at = time.monotonic() + self._pause

    def _answer(self, first: int) -> list[tuple[int, bytes]]:
        """Return the batches from a number on, after a description if some of them are not in the buffer any more."""
        with self._lock:
            kept = [(number, payload) for number, payload, _ in self._buffer]
            start = kept[0][0] if kept else self._next
            if first >= start:
                return [batch for batch in kept if batch[0] >= first]
            if self._dropped is not None and first == self._dropped[0]:
                return [self._dropped, *kept]
            described = self._base.describe()
        chunks = divide_description(described, start)
        numbered = [(start - len(chunks) + i, self._encode(chunk)) for i, chunk in enumerate(chunks)]
        return [*numbered, *kept]


def divide_description(described: list[Event], numbers: int) -> list[list[Event]]:
    """Divide a description into batches, at most ``numbers`` of them.

    The description takes the place of the batches which it sums up, and so has at most as many numbers. Batches are as
    large as a reader takes them only if there are too few numbers for smaller ones.
    """
    limits = list(_CHUNK)
    while True:
        chunks: list[list[Event]] = [[]]
        sums = [0, 0, 0]
        for event in described:
            size = [1, len(event.get("block_hashes", ())), len(event.get("token_ids", ()))]
            larger = [n + more for n, more in zip(sums, size, strict=True)]
            if chunks[-1] and any(n > limit for n, limit in zip(larger, limits, strict=True)):
                chunks.append([])
                larger = size
            chunks[-1].append(event)
            sums = larger
        if len(chunks) <= numbers:
            return chunks
        limits = [2 * limit for limit in limits]

"""A Python function as a worker of the fleet, with `penstock worker` as its side process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from penstock.errors import PenstockError
from penstock.handlers import Handler, HandlerServer, ModelCard
from penstock.publisher import KvEventPublisher
from penstock.server import Server

# Variables which are the package's own, and no settings of a worker.
_OWN = ("PENSTOCK_BIN", "PENSTOCK_SERVER", "PENSTOCK_API_KEY")

_log = logging.getLogger("penstock")

# What this process serves.
_serving: set[ServedEndpoint] = set()


class WorkerExitError(PenstockError):
    """The worker beside the handler ended by itself. Its reason is on standard error."""


class ServedEndpoint:
    """A handler and the worker beside it."""

    def __init__(
        self,
        fleet: Server,
        path: tuple[str, str, str],
        handler: Handler,
        card: ModelCard,
        kv_publisher: KvEventPublisher | None,
        graceful_shutdown: bool,
        worker_args: Sequence[str],
    ) -> None:
        if kv_publisher is not None:
            if card.total_blocks == 0:
                raise ValueError("total_blocks of the card is 0, which is no KV cache, and there is a kv_publisher")
            if card.block_size != kv_publisher.block_size:
                sizes = f"{card.block_size} in the card and {kv_publisher.block_size} in the kv_publisher"
                raise ValueError(f"block_size is {sizes}; they must be equal")
        self.fleet = fleet
        self._names = path
        self._key = secrets.token_hex(16)
        self._server = HandlerServer(handler, card, self._key)
        self._publisher = kv_publisher
        self._graceful = graceful_shutdown
        self._args = worker_args
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._worker: asyncio.subprocess.Process | None = None

    def stop(self) -> None:
        """Leave the fleet, and have run return. Signal handlers and other threads may call it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        """Serve until stop is called or SIGTERM comes."""
        binary = os.environ.get("PENSTOCK_BIN") or shutil.which("penstock")
        if binary is None:
            raise PenstockError("there is no program penstock in PATH: install it, or name it with PENSTOCK_BIN")
        url = await self._server.start()
        try:
            with tempfile.TemporaryDirectory(prefix="penstock-") as directory, _register(self):
                if "," in directory:
                    raise PenstockError(f"{directory} has a comma: set TMPDIR to a directory without one")
                key = Path(directory) / "key"  # stays: the worker reads it again when it opens the handler again
                key.touch(0o600)
                key.write_text(self._key)
                await self._run_worker([binary, "worker", *self._flags(url, key)])
        finally:
            await self._server.close()

    def close_in_child(self) -> None:
        """Close in a child by fork the files whose end says to the worker that this process has ended."""
        numbers = self._server.filenos()
        if self._worker is not None and self._worker.stdin is not None:
            with contextlib.suppress(ValueError):  # it is closed
                numbers.append(self._worker.stdin.get_extra_info("pipe").fileno())
        null = os.open(os.devnull, os.O_RDWR)
        for number in numbers:  # the numbers stay in use: objects which the child has too close them
            os.dup2(null, number, inheritable=False)
        os.close(null)

    def _flags(self, url: str, key: Path) -> list[str]:
        engine = f"python={url},api-key-file={key}"
        if self._publisher is not None:
            engine += f",events={_local(self._publisher.endpoint)}"
            if self._publisher.replay_endpoint is not None:
                engine += f",replay={_local(self._publisher.replay_endpoint)}"
        namespace, component, endpoint = self._names
        names = ["--namespace", namespace, "--component", component, "--endpoint", endpoint]
        return ["--engine", engine, *names, "--json", "--stop-with-stdin", *self._args]

    async def _run_worker(self, command: list[str]) -> None:
        environ = {name: value for name, value in os.environ.items() if name not in _OWN}
        pipe = asyncio.subprocess.PIPE
        # A session of its own: Ctrl-C is for this process, which tells the worker. The worker ends with the pipe.
        self._worker = worker = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, env=environ, start_new_session=True
        )
        tasks = [asyncio.create_task(one) for one in (worker.wait(), self._stopping.wait(), _read_output(worker))]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():
                raise WorkerExitError(f"the worker ended with code {worker.returncode}: see what it said")
            if worker.returncode is None:
                worker.terminate()
            if not self._graceful:
                await self._server.close()  # other workers go on with what breaks off
            if await worker.wait() not in (0, -signal.SIGTERM):  # the latter before it handles signals
                raise WorkerExitError(f"the worker ended with code {worker.returncode} while it was stopped")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if worker.returncode is None:  # this task was cancelled: nothing is left to finish
                await self._server.close()
                worker.terminate()
                await worker.wait()


@contextlib.contextmanager
def _register(served: ServedEndpoint) -> Iterator[None]:
    """Let SIGTERM stop an endpoint, unless the program has a handler of its own for it."""
    _serving.add(served)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGTERM, _handle_sigterm)
    try:
        yield
    finally:
        _serving.discard(served)
        if not _serving:
            _restore_sigterm()


def _handle_sigterm(number: int, frame: FrameType | None) -> None:
    for served in list(_serving):
        served.stop()


def _restore_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _handle_sigterm:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def stop_all(fleet: Server) -> None:
    """Leave a fleet with what this process serves of it."""
    for served in list(_serving):
        if served.fleet is fleet:
            served.stop()


def _leave_to_parent() -> None:
    """Serve nothing in a child by fork: its parent goes on with it."""
    for served in _serving:
        served.close_in_child()
    _serving.clear()
    _restore_sigterm()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_leave_to_parent)


async def _read_output(worker: asyncio.subprocess.Process) -> None:
    """Log that the worker serves, which it says in its first line, and drop what follows."""
    assert worker.stdout is not None
    with contextlib.suppress(ValueError, KeyError):
        started = json.loads(await worker.stdout.readline())
        _log.info("worker %s serves %s", started["worker_id"], started["model"])
    while await worker.stdout.read(1 << 16):
        pass


def _local(endpoint: str) -> str:
    """Return the endpoint at which this machine reaches a publisher which listens on all interfaces."""
    return endpoint.replace("tcp://0.0.0.0:", "tcp://127.0.0.1:").replace("tcp://[::]:", "tcp://127.0.0.1:")

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
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.errors import PenstockError
from penstock.handlers import Handler, HandlerServer, ModelCard
from penstock.publisher import KvEventPublisher

# Variables which are the package's own, and no settings of a worker.
_OWN = ("PENSTOCK_BIN", "PENSTOCK_SERVER", "PENSTOCK_API_KEY")

_log = logging.getLogger("penstock")


class WorkerExitError(PenstockError):
    """The worker beside the handler ended by itself. Its reason is on standard error."""


class ServedEndpoint:
    """A handler and the worker beside it."""

    def __init__(
        self,
        path: tuple[str, str, str],
        handler: Handler,
        card: ModelCard,
        kv_publisher: KvEventPublisher | None,
        graceful_shutdown: bool,
        worker_args: Sequence[str],
    ) -> None:
        self._names = path
        self._key = secrets.token_hex(16)
        self._server = HandlerServer(handler, card, self._key)
        self._publisher = kv_publisher
        self._graceful = graceful_shutdown
        self._args = worker_args
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Leave the fleet: run returns once the running requests have finished."""
        self._stopping.set()

    async def run(self, stop_all: Callable[[], None]) -> None:
        """Serve until stop is called. SIGTERM calls stop_all."""
        binary = os.environ.get("PENSTOCK_BIN") or shutil.which("penstock")
        if binary is None:
            raise PenstockError("there is no program penstock in PATH: install it, or name it with PENSTOCK_BIN")
        url = await self._server.start()
        try:
            with tempfile.TemporaryDirectory(prefix="penstock-") as directory, _handle_sigterm(stop_all):
                key = Path(directory) / "key"
                key.touch(0o600)
                key.write_text(self._key)
                await self._run_worker([binary, "worker", *self._flags(url, key)])
        finally:
            await self._server.close()

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
        worker = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, env=environ, start_new_session=True
        )
        tasks = [asyncio.create_task(one) for one in (worker.wait(), self._stopping.wait(), _log_ready(worker))]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():
                raise WorkerExitError(f"the worker ended with code {worker.returncode}: see what it said")
            if worker.returncode is None:
                worker.terminate()
            if not self._graceful:
                await self._server.close()  # other workers go on with what breaks off
            if await worker.wait() != 0:
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
def _handle_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call stop at SIGTERM, unless the program has a handler for it, perhaps of another endpoint."""
    loop = asyncio.get_running_loop()
    handled = False
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # another thread, or Windows
            loop.add_signal_handler(signal.SIGTERM, stop)
            handled = True
    try:
        yield
    finally:
        if handled:
            loop.remove_signal_handler(signal.SIGTERM)


async def _log_ready(worker: asyncio.subprocess.Process) -> None:
    """Log that the worker serves, which it says in one line."""
    assert worker.stdout is not None
    with contextlib.suppress(ValueError, KeyError):
        started = json.loads(await worker.stdout.readline())
        _log.info("worker %s serves %s", started["worker_id"], started["model"])


def _local(endpoint: str) -> str:
    """Return the endpoint at which this machine reaches a publisher which listens on all interfaces."""
    return endpoint.replace("tcp://0.0.0.0:", "tcp://127.0.0.1:").replace("tcp://[::]:", "tcp://127.0.0.1:")

"""Use Penstock from Python: send prompts to its workers, be a worker, or publish the KV cache events of an engine.

docs/sdk.md describes all three.
"""

from penstock.config import KvRouterConfig
from penstock.errors import (
    ConfigError,
    PenstockError,
    RefusedError,
    StreamBrokenError,
    UnavailableError,
    UnknownNameError,
    UnreachableError,
)
from penstock.events import CxlMemoryMetadata, MoeMetadata, StoredBlock
from penstock.handlers import Context, ModelCard
from penstock.publisher import KvEventPublisher
from penstock.router import KvPushRouter, PotentialLoad
from penstock.runtime import Client, Component, DistributedRuntime, Endpoint, Namespace, namespace
from penstock.serve import WorkerExitError
from penstock.server import GenerateEvent

__all__ = [
    "Client",
    "Component",
    "ConfigError",
    "Context",
    "CxlMemoryMetadata",
    "DistributedRuntime",
    "Endpoint",
    "GenerateEvent",
    "KvEventPublisher",
    "KvPushRouter",
    "KvRouterConfig",
    "ModelCard",
    "MoeMetadata",
    "Namespace",
    "PenstockError",
    "PotentialLoad",
    "RefusedError",
    "StoredBlock",
    "StreamBrokenError",
    "UnavailableError",
    "UnknownNameError",
    "UnreachableError",
    "WorkerExitError",
    "namespace",
]

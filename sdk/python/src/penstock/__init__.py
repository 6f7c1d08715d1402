"""Use Penstock from Python: send prompts to its workers, or publish the KV cache events of an engine to it.

docs/sdk.md describes both.
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
from penstock.publisher import KvEventPublisher
from penstock.router import KvPushRouter, PotentialLoad
from penstock.runtime import Client, Component, DistributedRuntime, Endpoint, Namespace, namespace
from penstock.server import GenerateEvent

__all__ = [
    "Client",
    "Component",
    "ConfigError",
    "CxlMemoryMetadata",
    "DistributedRuntime",
    "Endpoint",
    "GenerateEvent",
    "KvEventPublisher",
    "KvPushRouter",
    "KvRouterConfig",
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
    "namespace",
]

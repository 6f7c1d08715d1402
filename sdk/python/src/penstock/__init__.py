"""Publish the KV cache events of an engine to Penstock; docs/sdk.md describes the use."""

from penstock.events import CxlMemoryMetadata, MoeMetadata, StoredBlock
from penstock.publisher import KvEventPublisher

__all__ = ["CxlMemoryMetadata", "KvEventPublisher", "MoeMetadata", "StoredBlock"]

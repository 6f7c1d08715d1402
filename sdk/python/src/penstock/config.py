"""What a router is asked for, and what its fleet must be set to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Union

from penstock.checks import OVERRIDE, Fields
from penstock.errors import ConfigError
from penstock.server import Server

# A time: seconds, or a text such as "10m" or "1m30s".
Duration = Union[int, float, str]


@dataclass(frozen=True)
class KvRouterConfig:
    """Settings of a KvPushRouter. What is None is as the fleet has it.

    The first group goes with each request, as the default of its ``router_config_override``. The others are settings of
    the frontend or router (docs/settings.md), which a client cannot change: the first call compares them and raises
    ConfigError if they differ.
    """

    overlap_score_weight: float | None = None
    router_temperature: float | None = None
    router_mode: str | None = None
    assume_kv_reuse: bool | None = None
    track_prefill_tokens: bool | None = None
    ttft_target_ms: float | None = None
    itl_target_ms: float | None = None
    disagg_policy: str | None = None
    max_local_prefill_length: int | None = None
    max_prefill_queue_size: int | None = None
    moe_query: Fields | None = None

    use_kv_events: bool | None = None
    router_predicted_ttl: Duration | None = None
    router_seed: int | None = None
    router_replica_sync: bool | None = None
    router_track_output_blocks: bool | None = None
    busy_threshold: float | None = None
    busy_prefill_tokens: int | None = None
    router_snapshot_threshold: int | None = None
    router_reset_states: bool | str | None = None
    router_prefill_queue_weight: float | None = None
    router_near_cost: float | None = None
    router_fetch_costs: Sequence[float] | None = None
    router_affinity_weights: Sequence[float] | None = None
    router_session_affinity: str | None = None
    router_session_ttl: Duration | None = None
    router_target_miss: str | None = None
    router_queue_threshold: float | str | None = None
    router_queue_policy: str | None = None
    router_queue_depth: int | None = None
    router_queue_patience: Duration | None = None
    migration_limit: int | None = None
    migration_wait: Duration | None = None
    prompt_wait: Duration | None = None
    active_request_expiry: Duration | None = None

    def __post_init__(self) -> None:
        self.override()

    def override(self) -> dict[str, Any]:
        """Return what goes with each request. Raises ValueError for a value out of range."""
        given = {name: getattr(self, name) for name in OVERRIDE}
        return {name: OVERRIDE[name](name, value) for name, value in given.items() if value is not None}

    def settings(self) -> dict[str, Any]:
        """Return what the frontend or router must have, by the names of its settings."""
        wanted: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in OVERRIDE or value is None:
                continue
            if field.name == "use_kv_events":
                wanted["no-kv-events"] = not value
            else:
                wanted[field.name.replace("_", "-")] = value
        return wanted

    async def check_server(self, server: Server) -> None:
        """Raise ConfigError if the settings of a frontend or router are others."""
        wanted = self.settings()
        if not wanted:
            return
        answer = await server.get("/v1/config")
        try:
            have = {row["key"]: row["value"] for row in answer["rows"]}
        except (TypeError, KeyError) as error:
            raise server.other_version(error) from error
        wrong = [
            f"--{name} {_show(value)} (it has {_show(have.get(name))})"
            for name, value in wanted.items()
            if name not in have or _normalize(value) != _normalize(have[name])
        ]
        if wrong:
            raise ConfigError(f"{server.url} has other settings: start it with {', '.join(wrong)}, or leave them out")


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|µs|ns|h|m|s)")


def _normalize(value: object) -> object:
    """Return a value in a form in which equal settings are equal: a duration is its seconds, a switch a bool."""
    if isinstance(value, (list, tuple)):
        return [_normalize(one) for one in value]
    if value in ("on", "off"):
        return value == "on"
    if isinstance(value, str) and value and not _PART.sub("", value):
        return sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(value))
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value

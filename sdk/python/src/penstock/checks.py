"""Which fields a request may have, and the range of each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsIndex, Union

from penstock.events import MAX_NUMBER, MAX_WORKER

# A check returns the value as it is sent, or raises ValueError with the field's name.
Check = Callable[[str, object], Any]
Fields = Mapping[str, object]

# Which token ids there are: a list, a NumPy array or another iterable of integers.
TokenIds = Iterable[Union[int, SupportsIndex]]

_MAX_COUNT = 2**31 - 1


def integer(low: int, high: int) -> Check:
    def check(name: str, value: object) -> int:
        number = _index(value)
        if number is None or not low <= number <= high:
            raise ValueError(f"{name} is {_show(value)}; it must be a whole number from {low} to {high}")
        return number

    return check


def number(low: float, high: float) -> Check:
    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ValueError(f"{name} is {_show(value)}; it must be a number from {low:g} to {high:g}")
        return value

    return check


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {_show(value)}; it must be True or False")
    return value


def word(*words: str) -> Check:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"{name} is {_show(value)}; it must be one of {', '.join(words)}")
        return value

    return check


def text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {_show(value)}; it must be a text which is not empty")
    return value


def integers(high: int) -> Check:
    def check(name: str, value: object) -> list[int]:
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise ValueError(f"{name} is {_show(value)}; it must be a list of whole numbers")
        numbers = list(map(_index, value))
        for i, one in enumerate(numbers):
            if one is None or not 0 <= one <= high:
                raise ValueError(f"{name}[{i}] is no whole number from 0 to {high}")
        return [one for one in numbers if one is not None]

    return check


def members(fields: Mapping[str, Check]) -> Check:
    def check(name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is {_show(value)}; it must be a dict")
        for key in value:
            if key not in fields:
                raise ValueError(f"{name} has no {_show(key)}; it has {', '.join(fields)}")
        return {key: fields[key](f"{name}.{key}", one) for key, one in value.items() if one is not None}

    return check


def _index(value: object) -> int | None:
    """Return a whole number, which may be NumPy's; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    return operator.index(value)


def _show(value: object) -> str:
    return repr(value)[:100]


WORKER_ID = integer(1, MAX_WORKER)
DP_RANK = integer(0, MAX_NUMBER)

_TOKENS = integers(MAX_NUMBER)


def prompt(name: str, value: object) -> list[int]:
    tokens: list[int] = _TOKENS(name, value)
    if not tokens:
        raise ValueError(f"{name} is empty")
    return tokens


# What a request may override, docs/format/nvext.md.
OVERRIDE: dict[str, Check] = {
    "overlap_score_weight": number(0, 1e9),
    "router_temperature": number(0, 1e9),
    "router_mode": word("time", "kv", "round-robin", "random", "power-of-two", "least-loaded", "direct"),
    "assume_kv_reuse": boolean,
    "track_prefill_tokens": boolean,
    "ttft_target_ms": number(0, 1e9),
    "itl_target_ms": number(0, 1e9),
    "disagg_policy": word("cost", "threshold", "always", "never"),
    "max_local_prefill_length": integer(0, 2**30),
    "max_prefill_queue_size": integer(0, 2**20),
    "moe_query": members(
        {
            "layer_id": integer(0, MAX_NUMBER),
            "expert_ids": integers(MAX_NUMBER),
            "expert_group": integer(0, MAX_NUMBER),
            "fallback_to_unlabeled": boolean,
        }
    ),
}

# The body of POST /v1/router/generate, docs/router-api.md.
REQUEST: dict[str, Check] = {
    "model": text,
    "token_ids": prompt,
    "stop_conditions": members(
        {
            "max_tokens": integer(1, _MAX_COUNT),
            "min_tokens": integer(0, _MAX_COUNT),
            "stop_token_ids": _TOKENS,
            "ignore_eos": boolean,
        }
    ),
    "sampling_options": members(
        {
            "temperature": number(0, 3e38),
            "top_k": integer(0, _MAX_COUNT),
            "top_p": number(0, 1),
            "min_p": number(0, 1),
            "seed": integer(0, 2**64 - 1),
            "repetition_penalty": number(0, 1e6),
            "presence_penalty": number(-1e6, 1e6),
            "frequency_penalty": number(-1e6, 1e6),
        }
    ),
    "router_config_override": members(OVERRIDE),
    "worker_id": WORKER_ID,
    "dp_rank": DP_RANK,
}


def check_request(given: Fields) -> dict[str, Any]:
    """Return a request as it is sent: what is None is left out."""
    request: dict[str, Any] = members(REQUEST)("the request", given)
    if "token_ids" not in request:
        raise ValueError("the request has no token_ids")
    return request

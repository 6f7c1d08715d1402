"""Sends a prompt of token ids to the worker with the shortest expected time to first token, by its own policy.

It asks the router for each worker's load with the prompt added, estimates the time from that, and names the worker in
the request. The router keeps tracking active and cached blocks.

    python examples/python/ttft.py --namespace penstock --component backend --model penstock-tiny 1 2 3 4
"""

import argparse
import asyncio

from penstock import DistributedRuntime, KvPushRouter, PotentialLoad


def estimate_ttft(load: PotentialLoad) -> float:
    """Return seconds by a model of a worker's time: replace it by one fitted to yours."""
    return load["potential_prefill_tokens"] * 100e-6 + load["potential_decode_blocks"] * 20e-6


async def main() -> None:
    flags = argparse.ArgumentParser(description="The server is that of PENSTOCK_SERVER.")
    flags.add_argument("--namespace", default="penstock")
    flags.add_argument("--component", default="backend")
    flags.add_argument("--endpoint", default="generate")
    flags.add_argument("--model", required=True)
    flags.add_argument("--block-size", type=int, default=16)
    flags.add_argument("--max-tokens", type=int, default=16)
    flags.add_argument("token_ids", type=int, nargs="+")
    o = flags.parse_args()

    async with DistributedRuntime.detached() as runtime:
        endpoint = runtime.namespace(o.namespace).component(o.component).endpoint(o.endpoint)
        router = KvPushRouter(endpoint, o.block_size, model=o.model)
        best = min(await router.get_potential_loads(o.token_ids), key=estimate_ttft)
        print(f"worker {best['worker_id']}: the first token is expected in {1000 * estimate_ttft(best):.1f} ms")
        stream = await router.generate(
            o.token_ids,
            o.model,
            stop_conditions={"max_tokens": o.max_tokens},
            worker_id=best["worker_id"],
            dp_rank=best["dp_rank"],
        )
        async for event in stream:
            print(*event["token_ids"], event.get("finish_reason", ""), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

import asyncio

from dynamo._core import DistributedRuntime, KvPushRouter, KvRouterConfig

PROMPT = [21, 22, 23]


async def ask():
    workers = DistributedRuntime.detached().namespace("inference").component("vllm").endpoint("generate")
    router = KvPushRouter(endpoint=workers, block_size=16, kv_router_config=KvRouterConfig())
    loads = await router.get_potential_loads(PROMPT)
    least = min(loads, key=lambda load: load["potential_prefill_tokens"])
    where, overlap = await router.best_worker_id(PROMPT)
    assert where in [load["worker_id"] for load in loads] and overlap == 0
    answer = await router.generate(
        token_ids=PROMPT,
        model="meta-llama/Llama-2-7b-hf",
        worker_id=least["worker_id"],
        stop_conditions={"max_tokens": 3},
    )
    async for output in answer:
        if isinstance(output, dict) and "token_ids" in output:
            print("Generated", output["token_ids"])


asyncio.run(ask())

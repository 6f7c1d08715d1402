import asyncio

from dynamo._core import DistributedRuntime, KvPushRouter, KvRouterConfig


async def ask():
    workers = DistributedRuntime.detached().namespace("inference").component("vllm").endpoint("generate")
    router = KvPushRouter(endpoint=workers, block_size=16, kv_router_config=KvRouterConfig())
    answer = await router.generate(
        token_ids=[11, 12, 13, 14, 15],
        model="meta-llama/Llama-2-7b-hf",
        stop_conditions={"max_tokens": 12, "ignore_eos": True},
        sampling_options={"temperature": 0.7, "top_p": 0.9},
        router_config_override={"overlap_score_weight": 2.0, "router_temperature": 0.5},
    )
    count = 0
    async for output in answer:
        if isinstance(output, dict) and "token_ids" in output:
            count += len(output["token_ids"])
    print("Generated", count, "tokens")


asyncio.run(ask())

import asyncio

from dynamo._core import DistributedRuntime


async def ask():
    names = DistributedRuntime.detached().namespace("inference").component("vllm").endpoint("generate")
    client = await names.client()
    request = {"token_ids": [31, 32], "stop_conditions": {"max_tokens": 1}}
    for send in (client.generate, client.random, client.round_robin):
        async for output in await send(request):
            last = output
    async for output in await client.direct(request, last["worker_id"]):
        assert output["worker_id"] == last["worker_id"]
    print("Generated 4 answers")


asyncio.run(ask())

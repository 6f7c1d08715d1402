"""Holds a streamed conversation with a running Penstock through the official
openai package. Usage: conversation.py URL. Exits 1 with a message on the first
thing that is not as it should be."""

import sys

import openai


def check(ok, what):
    if not ok:
        sys.exit(f"FAIL: {what}")


def turn(client, model, messages):
    text, usage, finish, chunks = "", None, None, 0
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=32, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        chunks += 1
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    check(chunks >= 3, f"only {chunks} chunks")
    check(text and finish in ("stop", "length"), f"text {text!r}, finish {finish!r}")
    check(usage and 1 <= usage.completion_tokens <= 32, f"usage {usage}")
    return text, usage


def main(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    model = client.models.list().data[0].id
    messages = [
        {"role": "system", "content": "You speak of rivers."},
        {"role": "user", "content": "The sluice is shut and the mill stands still. " * 20},
    ]
    cached = []
    for _ in range(3):
        text, usage = turn(client, model, messages)
        cached.append(usage.prompt_tokens_details.cached_tokens)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    check(cached[1] > 0 and cached[2] >= cached[1], f"cached tokens by turn {cached}")

    completion = client.completions.create(model=model, prompt=["one", "two"], max_tokens=8, n=2, temperature=1.0, seed=3, logprobs=2)
    check(len(completion.choices) == 4, f"{len(completion.choices)} choices")
    check(completion.choices[0].logprobs.token_logprobs, "no logprobs")

    embeddings = client.embeddings.create(model=model, input=["the mill", "the sluice", "the mill"])  # as base64
    vectors = [e.embedding for e in embeddings.data]
    check(vectors[0] == vectors[2] != vectors[1], "embeddings are not those of their texts")
    check(abs(sum(x * x for x in vectors[0]) - 1) < 1e-5, "an embedding is not of length 1")
    numbers = client.embeddings.create(model=model, input="the mill", encoding_format="float").data[0].embedding
    check(all(abs(a - b) < 1e-7 for a, b in zip(numbers, vectors[0], strict=True)), "base64 and numbers differ")
    check(embeddings.usage.prompt_tokens == embeddings.usage.total_tokens > 0, f"usage {embeddings.usage}")
    try:
        client.embeddings.create(model=model, input="the mill", dimensions=8)
        check(False, "dimensions were accepted")
    except openai.BadRequestError as e:
        check(e.param == "dimensions", f"param {e.param!r}")

    try:
        client.chat.completions.create(model="no-such-model", messages=messages)
        check(False, "an unknown model was accepted")
    except openai.NotFoundError as e:
        check("no-such-model" in e.message, f"message {e.message!r}")
    try:
        client.chat.completions.create(model=model, messages=messages, temperature=9)
        check(False, "temperature 9 was accepted")
    except openai.BadRequestError as e:
        check(e.param == "temperature", f"param {e.param!r}")
    print(f"openai {openai.__version__}: conversation held, cached tokens by turn {cached}")


main(sys.argv[1])

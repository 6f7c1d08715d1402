"""Holds the official openai package against servers that speak as other engines do.

    dialects_client.py NAME=URL…

Each URL is a running "penstock sim" with the dialect NAME. Prints a line for each
check and exits 1 if any failed."""

import json
import sys
import urllib.request

import openai

from harness import Report, expect, raises

TALK = [{"role": "user", "content": "Where does the water go?"}]


def connect(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, timeout=30)
    return client, client.models.list().data[0].id


def faults(url, *switches):
    body = json.dumps({"faults": list(switches)}).encode()
    urllib.request.urlopen(urllib.request.Request(url + "/admin/faults", body)).read()


def chat(url):
    client, model = connect(url)
    ask = dict(model=model, messages=TALK, max_tokens=20, temperature=0)
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    stream = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    expect(text, whole.choices[0].message.content, "the stream's text")
    expect(bool(text), True, "a text")
    expect([c.choices[0].finish_reason for c in stream if c.choices and c.choices[0].finish_reason], ["length"], "reasons")
    expect((stream[-1].usage.completion_tokens, whole.usage.completion_tokens), (20, 20), "tokens")
    expect(len(whole.choices[0].logprobs.content), 20, "log-probabilities")


def completions(url):
    client, model = connect(url)
    two = client.completions.create(model=model, prompt=[300, 301, 302], max_tokens=5, n=2, temperature=0)
    expect((len(two.choices), two.usage.prompt_tokens, two.usage.completion_tokens), (2, 3, 10), "two choices of a prompt of tokens")
    ask = dict(model=model, prompt="The water", max_tokens=30, temperature=0)
    whole = client.completions.create(**ask).choices[0].text
    stop = whole[10:13]
    cut = client.completions.create(**ask, stop=[stop])
    expect((cut.choices[0].text, cut.choices[0].finish_reason), (whole[: whole.index(stop)], "stop"), "a stop string")
    stream = client.completions.create(**ask, stop=[stop], stream=True)
    expect("".join(c.choices[0].text for c in stream if c.choices), cut.choices[0].text, "the stream's text")


def errors(url):
    client, model = connect(url)
    raises(openai.BadRequestError, lambda: client.completions.create(model=model, prompt="x", n=0))
    faults(url, {"kind": "limit", "count": 1})
    e = raises(openai.RateLimitError, lambda: client.completions.create(model=model, prompt="x"))
    expect(e.response.headers["retry-after"], "1", "Retry-After")
    faults(url, {"kind": "stream_error", "after": 3, "count": 1})
    raises(openai.APIError, lambda: list(client.chat.completions.create(model=model, messages=TALK, max_tokens=20, stream=True)))


def main(servers):
    report = Report(f"openai {openai.__version__} (Python)")
    for name, url in (s.split("=", 1) for s in servers):
        report.check(f"{name} chat: whole and stream", chat, url)
        report.check(f"{name} completions: tokens, n, stop", completions, url)
        report.check(f"{name} errors: 400, 429, in a stream", errors, url)
    report.end()


main(sys.argv[1:])

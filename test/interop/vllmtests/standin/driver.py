"""Speaks with the Go program that offers Penstock's parser (test/parserdriver)."""

import json
import os
import subprocess


class Driver:
    def __init__(self):
        self.process = None

    def ask(self, **command) -> dict:
        if self.process is None:
            program = os.environ["PENSTOCK_PARSE_DRIVER"]
            self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if answer.get("error"):
            raise RuntimeError(f"the driver says: {answer['error']}")
        return answer

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


DRIVER = Driver()


class Session:
    """One answer that is being parsed."""

    def __init__(self, *, tools="", reasoning="", start="", functions=()):
        answer = DRIVER.ask(op="open", tools=tools, reasoning=reasoning, start=start, functions=list(functions))
        self.number = answer["session"]
        self.thinking = answer["thinking"]

    def push(self, text: str) -> list[dict]:
        answer = DRIVER.ask(op="push", session=self.number, text=text)
        self.thinking = answer["thinking"]
        return answer.get("events") or []

    def close(self) -> list[dict]:
        answer = DRIVER.ask(op="close", session=self.number)
        self.thinking = answer["thinking"]
        return answer.get("events") or []


def start_after(reasoning: str, prompt: str) -> str:
    """Where an answer to prompt begins."""
    return DRIVER.ask(op="prompt", reasoning=reasoning, text=prompt).get("start", "")

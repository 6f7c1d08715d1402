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


class Token(str):
    """The text of one special token."""


class Session:
    """One answer that is being parsed."""

    def __init__(self, **settings):
        answer = DRIVER.ask(op="open", **settings)
        self.number = answer["session"]
        self.thinking = answer["thinking"]
        # Of reasoning alone, markup of calls is what another parser is to read.
        self.silent = (settings.get("tools") and answer.get("silent")) or []

    def push(self, *pieces: str) -> list[dict]:
        """Parses pieces of the answer. One that is a Token came as a token of its own."""
        command = [{"text": self.spoken(p), "token": isinstance(p, Token)} for p in pieces]
        answer = DRIVER.ask(op="push", session=self.number, pieces=command)
        self.thinking = answer["thinking"]
        return answer.get("events") or []

    def spoken(self, text: str) -> str:
        for token in self.silent:
            text = text.replace(token, "")
        return text

    def close(self) -> list[dict]:
        answer = DRIVER.ask(op="close", session=self.number)
        self.thinking = answer["thinking"]
        return answer.get("events") or []


class Undeclared(Session):
    """An answer with reasoning and calls of which the test declares no functions.

    Penstock looks for calls only if a request has tools, and inside reasoning only for
    calls of its functions. So each function that the answer calls is declared before
    the text that completes its name is parsed. That begins the session again.
    """

    def __init__(self, **settings):
        super().__init__(**settings)
        self.settings, self.pieces, self.names = settings, [], set()
        self.scout = Session(**settings | {"reasoning": "", "start": "closed"})

    def push(self, *pieces: str) -> list[dict]:
        names = self.names | {e["name"] for e in self.scout.push(*pieces) if e["kind"] == "call"}
        if names != self.names:
            self.names = names
            functions = [{"name": name} for name in sorted(names)]
            super().__init__(**self.settings | {"functions": functions})
            super().push(*self.pieces)
        self.pieces += pieces
        return super().push(*pieces)

    def close(self) -> list[dict]:
        self.scout.close()
        return super().close()


def start_after(reasoning: str, prompt: str) -> str:
    """Where an answer to prompt begins."""
    return DRIVER.ask(op="prompt", reasoning=reasoning, text=prompt).get("start", "")

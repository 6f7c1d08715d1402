"""A libzmq peer that does what it is told: one JSON object a line on standard
input, one in answer to each on standard output."""
import json
import struct
import sys

import zmq
from zmq.utils.monitor import recv_monitor_message

ctx = zmq.Context()
sockets = {}
monitors = {}
TIMEOUT = 20_000  # ms; nothing here waits longer


def frames_of(m):
    return [f.hex() for f in m]


def numbered(topic, n, size):
    return [topic.encode(), struct.pack(">Q", n), bytes(size)]


def embedding_record(number, record):
    """The events of a record as docs/format/embedding-event.md has it."""
    magic, version, flags, rank, worker, epoch, first, _, count, length = struct.unpack_from("<BBHIQQQIII", record)
    assert (magic, version, length, len(record)) == (0xED, 1, 48 * count, 44 + length), record.hex()
    assert first == struct.unpack(">Q", number)[0]
    events = []
    for i in range(count):
        kind, rows, size, key = struct.unpack_from("<B3xIQ32s", record, 44 + 48 * i)
        events.append({"number": first + i, "kind": kind, "rows": rows, "bytes": size, "key": key.hex()})
    return {"worker": worker, "rank": rank, "epoch": epoch}, events


class EmbeddingReader:
    """Follows the events of an embedding cache: subscribed first, then asked for what it has not got."""

    def __init__(self, sub, dealer):
        self.sub, self.dealer = sub, dealer
        self.next, self.held, self.log, self.source, self.asked = 1, {}, [], None, 0

    def apply(self, number, record):
        """Applies a record, and says whether events are missing before it."""
        self.source, events = embedding_record(number, record)
        for e in events:
            if e["kind"] == 3 and e["number"] >= self.next:
                self.held, self.next = {}, e["number"]
            if e["number"] > self.next:
                return True
            if e["number"] < self.next:
                continue
            self.next += 1
            self.log.append(e)
            if e["kind"] == 1:
                self.held[e["key"]] = e
            elif e["kind"] != 3:
                del self.held[e["key"]]
        return struct.unpack(">Q", number)[0] > self.next

    def replay(self):
        self.asked += 1
        self.dealer.send_multipart([b"", struct.pack(">Q", self.next)])
        while True:
            empty, topic, number, record = self.dealer.recv_multipart()
            assert empty == b"", empty
            if number == b"\xff" * 8:
                return
            assert topic == b"embedding-events", topic
            self.apply(number, record)

    def follow(self, upto, drop):
        """Follows until the events before a number are applied; drops the first messages with new events."""
        if self.next == 1:
            self.replay()
        while self.next < upto:
            topic, number, record = self.sub.recv_multipart()
            assert topic == b"embedding-events", topic
            if drop > 0 and len(record) > 44 and struct.unpack(">Q", number)[0] >= self.next:
                drop -= 1
            elif self.apply(number, record):
                self.replay()
        held = [{"key": k, "rows": e["rows"], "bytes": e["bytes"]} for k, e in self.held.items()]
        return {"source": self.source, "held": held, "log": self.log, "asked": self.asked}


readers = {}


def do(c):
    op = c["op"]
    if op == "version":
        return {"libzmq": zmq.zmq_version(), "pyzmq": zmq.pyzmq_version()}
    if op == "socket":
        s = ctx.socket(getattr(zmq, c["type"]))
        s.setsockopt(zmq.LINGER, c.get("linger", 0))
        s.setsockopt(zmq.RCVTIMEO, TIMEOUT)
        s.setsockopt(zmq.SNDTIMEO, TIMEOUT)
        for name, value in (c.get("opts") or {}).items():
            value = value.encode() if isinstance(value, str) else value
            s.setsockopt(getattr(zmq, name), value)
        if c.get("curve"):
            s.curve_publickey, s.curve_secretkey = zmq.curve_keypair()
            s.curve_server = True
        sockets[c["id"]] = s
        monitors[c["id"]] = s.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        return {}
    s = sockets[c["id"]]
    if op == "bind":
        s.bind(c["endpoint"])
        return {"endpoint": s.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()}
    if op == "unbind":
        s.unbind(c["endpoint"])
        return {}
    if op == "connect":
        s.connect(c["endpoint"])
        return {}
    if op == "set":
        s.setsockopt(getattr(zmq, c["name"]), c["value"].encode())
        return {}
    if op == "event":  # the next event of the connection, "" if none comes
        m = monitors[c["id"]]
        if not m.poll(c.get("ms", TIMEOUT)):
            return {"event": ""}
        e = recv_monitor_message(m)["event"]
        return {"event": "connected" if e == zmq.EVENT_HANDSHAKE_SUCCEEDED else "disconnected"}
    if op == "send":
        s.send_multipart([bytes.fromhex(f) for f in c["frames"]])
        return {}
    if op == "recv":
        return {"frames": frames_of(s.recv_multipart())}
    if op == "quiet":  # nothing comes for so long
        return {"quiet": not s.poll(c["ms"])}
    if op == "burst":  # numbered messages
        for n in range(c["first"], c["first"] + c["n"]):
            s.send_multipart(numbered(c.get("topic", "t"), n, c["size"]))
        return {}
    if op == "collect":  # the same, received
        for n in range(c["first"], c["first"] + c["n"]):
            m = s.recv_multipart()
            if m != numbered(c.get("topic", "t"), n, c["size"]):
                return {"error": f"message {n}: got {len(m)} frames, {m[0][:40]!r}, {m[1].hex()}"}
        return {}
    if op == "serve":  # answers one request for a replay as engines do
        identity, empty, start = s.recv_multipart()
        first = struct.unpack(">Q", start)[0]
        for n in range(first, c["n"]):
            s.send_multipart([identity, b""] + numbered("t", n, c["size"]))
        s.send_multipart([identity, b"", b"", b"\xff" * 8, b""])
        return {"first": first, "empty": empty.hex()}
    if op == "embeddings":
        if c["id"] not in readers:
            readers[c["id"]] = EmbeddingReader(s, sockets[c["dealer"]])
        return readers[c["id"]].follow(c["upto"], c.get("drop", 0))
    if op == "close":
        s.disable_monitor()
        monitors.pop(c["id"]).close(0)
        sockets.pop(c["id"]).close()
        return {}
    raise ValueError(op)


def main():
    for line in sys.stdin:
        try:
            answer = do(json.loads(line))
        except Exception as e:  # the caller decides
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)


main()

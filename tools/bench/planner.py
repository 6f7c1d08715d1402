#!/usr/bin/env python3
"""Compares ways to size a fleet on four shapes of traffic, made from the requests of a public trace.

    tools/bench/planner.py TRACE [--penstock BIN] [--work DIR] [--shapes NAME,...] [--planners NAME,...]
                                 [--sample D] [--requests N] [--seed N] [--height X] [--markdown] [-- FLAG...]

TRACE is Mooncake's synthetic_trace.jsonl (https://github.com/kvcache-ai/Mooncake, under FAST25-release/traces). The
lengths of the requests and what their prompts share are the trace's: 12 tenants send its requests in order, each from
another place on and with other names of blocks, and --seed draws which is the next. So the requests are of one kind all
the time. Their times are a Poisson process whose rate is the shape's:

    day    24 h, the trace's own rate in 48 parts, times a wave: by night a tenth of the most
    step   1 h, four times the rate (--height) from the middle on
    spike  2 h, ten times the rate (--height) for five minutes
    week   7 such waves, on the last two days with 0.6 of the rate

with 24,000, 12,000, 12,000 and 84,000 requests, or --requests. Each is a "penstock replay --planner" of --planners, on
virtual time: the result is the same on any machine. "planner" takes samples (--sample, 5s), "unsampled" takes none, and
"present" the size for the true arrivals of the interval which begins, ordered then: no planner without foresight orders
earlier. Engines are half as fast as the default, and the targets are a
TTFT of 4 s and an ITL of 100 ms: a worker keeps them for some 0.3 requests a second. FLAGs go to replay.
Results are kept in DIR (by default planner-COMMIT in the temporary directory), so that an interrupted comparison is
resumed. 12,000 requests take some 40 s of processor time.

It prints a table: HOURS are worker-hours, RATIO is to the oracle's, BEHIND is the attainment in points below the static
fleet's. It ends with 1 if the planner misses a bar: BEHIND at most 1, RATIO at most 1.25. BEYOND is for step and spike:
the points which arrive in the start-up after the rise beyond the rate before, for which the workers are sized then. It
is no bound of what is lost: workers with more than they are sized for still keep the targets for many requests.
"""

import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile

BLOCK = 512
SPEED = 0.5
TTFT = 4.0
ITL = 100.0
START_UP = 60.0
TENANTS = 12
HOUR = 3600.0
DAY = 24 * HOUR
MOST_BEHIND, MOST_RATIO = 1.0, 1.25
NAMES = ("planner", "unsampled", "reactive", "static", "oracle", "present")


def wave(at):
    """The rate by the time of the day, 0.1 to 1: least at 4 h, most at 16 h."""
    return 0.55 - 0.45 * math.cos(2 * math.pi * (at / DAY - 4 / 24))


class Shape:
    """A rate by time, in parts of the largest one, for a number of requests."""

    def __init__(self, requests, duration, rate, rise=None, end=None, height=1):
        self.requests, self.duration, self.rate = requests, duration, rate
        self.rise, self.end, self.height = rise, end, height


def make_shapes(rows, requests, height):
    parts = [0] * 48
    last = rows[-1]["timestamp"] + 1
    for r in rows:
        parts[int(r["timestamp"] * len(parts) / last)] += 1
    most = max(parts)

    def rise_from(rise, end, times):
        return lambda at: 1.0 if rise <= at < end else 1 / times

    step, spike = height or 4, height or 10
    return {
        "day": Shape(requests or 24_000, DAY, lambda at: wave(at) * parts[int(at * len(parts) / DAY)] / most),
        "step": Shape(requests or 12_000, HOUR, rise_from(HOUR / 2, HOUR, step), HOUR / 2, HOUR, step),
        "spike": Shape(requests or 12_000, 2 * HOUR, rise_from(HOUR, HOUR + 300, spike), HOUR, HOUR + 300, spike),
        "week": Shape(requests or 84_000, 7 * DAY, lambda at: wave(at) * (0.6 if at >= 5 * DAY else 1)),
    }


def draw_times(shape, seed):
    """The times of a Poisson process of the shape's rate, with exactly its number of requests."""
    draw = random.Random(seed)
    times = []
    while len(times) < shape.requests:
        at = draw.random() * shape.duration
        if draw.random() < shape.rate(at):
            times.append(at)
    return [0.0] + sorted(times)[1:]


def write_trace(path, rows, shape, seed):
    """Writes a trace."""
    names = 1 + max(max(r["hash_ids"]) for r in rows)
    draw, sent = random.Random(seed + 1), [0] * TENANTS
    with open(path, "w", encoding="utf-8") as f:
        for at in draw_times(shape, seed):
            tenant = draw.randrange(TENANTS)
            place = sent[tenant] + tenant * len(rows) // TENANTS
            sent[tenant] += 1
            r, turn = rows[place % len(rows)], place // len(rows)
            ids = [n + (turn * TENANTS + tenant) * names for n in r["hash_ids"]]
            line = {"timestamp": round(1000 * at, 3), "input_length": r["input_length"], "output_length": r["output_length"], "hash_ids": ids}
            f.write(json.dumps(line) + "\n")


def find_beyond(shape):
    """The points which arrive in the start-up after the rise, beyond the rate before."""
    if shape.rise is None:
        return "-"
    least = shape.requests / ((shape.end - shape.rise) * shape.height + shape.duration - shape.end + shape.rise)
    return f"{100 * least * (shape.height - 1) * min(START_UP, shape.end - shape.rise) / shape.requests:.2f}"


def replay(binary, trace, names, more, work):
    """The rows of replay, from work if they are there."""
    command = [
        binary, "replay", "--trace", str(trace), "--planner", ",".join(names), "--json", "--speedup", str(SPEED), "--slo-ttft", f"{TTFT:g}s",
        "--slo-itl", f"{ITL:g}ms", "--planner-startup", f"{START_UP:g}s", "--block-size", str(BLOCK), "--cache-tokens", str(1 << 20), *more,
    ]
    key = hashlib.sha256(json.dumps(command[4:]).encode() + trace.read_bytes() + pathlib.Path(binary).read_bytes()).hexdigest()[:24]
    kept = work / f"{key}.json"
    if not kept.exists():
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        part = kept.with_suffix(".part")
        part.write_bytes(done.stdout)
        os.replace(part, kept)
    return json.loads(kept.read_text(encoding="utf-8"))["rows"]


def run_all(binary, trace, names, sample, more, work):
    """The rows of all ways by their names. Each is a run of its own, so that no change of the names repeats it."""
    def run(name):
        mode = "planner" if name == "unsampled" else name
        return replay(binary, trace, [mode], ["--planner-sample", "0s" if name == "unsampled" else sample, *more], work)[0]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(run, names)))


def describe(name, shape, rows):
    """The lines of a shape, and whether the planner misses a bar."""
    lines, bad = [], False
    for planner, r in rows.items():
        behind = 100 * (rows["static"]["slo_attainment"] - r["slo_attainment"]) if "static" in rows else math.nan
        ratio = r["worker_hours"] / rows["oracle"]["worker_hours"] if "oracle" in rows else math.nan
        missed = behind > MOST_BEHIND or ratio > MOST_RATIO
        bad = bad or missed and planner in ("planner", "unsampled")
        lines.append([
            name, shape.requests, planner, f"{100 * r['slo_attainment']:.2f}", f"{behind:.2f}", f"{r['worker_hours']:.1f}", f"{ratio:.2f}", r["most_workers"],
            find_beyond(shape), "missed" if missed else "held",
        ])
    return lines, bad


HEAD = ["shape", "requests", "planner", "within %", "behind", "hours", "ratio", "most", "beyond", "bar"]


def print_table(lines, markdown):
    widths = [max(len(str(x[i])) for x in [HEAD, *lines]) for i in range(len(HEAD))]
    for n, line in enumerate([HEAD, *lines]):
        if markdown:
            print("| " + " | ".join(str(x) for x in line) + " |")
        else:
            print("  ".join(str(x).ljust(w) for x, w in zip(line, widths)).rstrip())
        if n == 0 and markdown:
            print("|" + "---|" * len(HEAD))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace")
    p.add_argument("--penstock")
    p.add_argument("--work")
    p.add_argument("--shapes", default="day,step,spike,week")
    p.add_argument("--planners", default=",".join(NAMES))
    p.add_argument("--sample", default="5s")
    p.add_argument("--requests", type=int)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--height", type=float)
    p.add_argument("--markdown", action="store_true")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    a, more = p.parse_args(given[:end]), given[end + 1:]
    home = pathlib.Path(__file__).resolve().parents[2]
    commit = subprocess.run(["git", "-C", home, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    rows = [json.loads(line) for line in open(a.trace, encoding="utf-8")]
    shapes = make_shapes(rows, a.requests, a.height)
    work = pathlib.Path(a.work or pathlib.Path(tempfile.gettempdir()) / f"planner-{commit}")
    work.mkdir(parents=True, exist_ok=True)
    lines, bad = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        binary = a.penstock
        if not binary:
            binary = str(pathlib.Path(temporary) / "penstock")
            subprocess.run(["go", "build", "-o", binary, "./cmd/penstock"], cwd=home, check=True)
        for name in a.shapes.split(","):
            path = pathlib.Path(temporary) / f"{name}.jsonl"
            write_trace(path, rows, shapes[name], a.seed)
            found, missed = describe(name, shapes[name], run_all(binary, path, a.planners.split(","), a.sample, more, work))
            lines += found
            bad += missed
            path.unlink()
    print_table(lines, a.markdown)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

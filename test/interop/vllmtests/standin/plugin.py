"""The pytest plugin that runs vLLM's parser tests against Penstock's parser (see
../run.sh), and compares their outcomes with the committed list.
"""

import collections
import json
import os
import pathlib

import pytest

from . import modules
from .driver import DRIVER
from .families import NOT_RUN, TESTS
from .parsers import Finish

ROOT = pathlib.Path(os.environ["VLLM_SOURCE"])
PARTIAL = "VLLM_PARTIAL" in os.environ  # only the tests which the caller names run
FAMILY = {path: family for family, paths in TESTS.items() for path in paths}
CATEGORIES = {
    "private": "token ids or private methods of vLLM",
    "repair": "repair of broken output",
    "space": "white space",
    "rule": "a rule that docs/parsers.md decides otherwise",
}


def read_list(path: pathlib.Path) -> dict[str, str]:
    """The tests that need not pass, with the category of each.

    A line has the category, the reason and the test's id, with tabs between them.
    """
    listed = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        category, reason, test = line.split("\t")
        if category not in CATEGORIES or not reason or test in listed:
            raise pytest.UsageError(f"{path}:{number}: unknown category, no reason, or a test that is listed twice")
        listed[test] = category
    return listed


def passes_beyond(report) -> bool:
    """Whether report is of a test which vLLM's own parser is known to fail: to pass is as good."""
    strict = report.failed and "XPASS(strict)" in str(report.longrepr)
    return report.when == "call" and (hasattr(report, "wasxfail") or strict)


class Outcomes:
    """Counts the tests of each family, and holds them against the list."""

    def __init__(self):
        self.listed = read_list(pathlib.Path(os.environ["VLLM_EXPECTED"]))
        self.outcome: dict[str, str] = {}
        self.failure: dict[str, str] = {}

    def add(self, report):
        test = report.nodeid
        if passes_beyond(report):
            self.outcome[test] = "passed"
        elif report.failed:
            self.outcome[test] = "failed"
            self.failure[test] = report.longreprtext
        elif report.skipped:
            self.outcome[test] = "skipped"
        elif report.when == "call":
            self.outcome.setdefault(test, "passed")

    def faults(self) -> list[str]:
        faults = []
        for test, outcome in self.outcome.items():
            if outcome == "failed" and test not in self.listed:
                last = self.failure[test].strip().splitlines()
                why = next((line for line in last if line.startswith("E ")), last[-1] if last else "")
                faults.append(f"{test} failed and is not listed: {why[:200]}")
            elif outcome == "passed" and test in self.listed:
                faults.append(f"{test} is listed ({self.listed[test]}) and passes: remove its line")
            elif outcome == "skipped" and test in self.listed:
                faults.append(f"{test} is listed and skips itself: remove its line")
        if not PARTIAL:
            missing = (test for test in self.listed if test not in self.outcome)
            faults += [f"{test} is listed, and there is no such test" for test in missing]
        return faults

    def table(self) -> str:
        counts = collections.defaultdict(collections.Counter)
        for test, outcome in self.outcome.items():
            family = FAMILY[test.split("::")[0]]
            if outcome == "failed":
                outcome = self.listed.get(test, "failed")
            counts[family][outcome] += 1
            counts["all"][outcome] += 1
        columns = ["passed", *CATEGORIES, "skipped", "failed"]
        lines = ["family".ljust(14) + "".join(c.rjust(9) for c in columns)]
        for family in [*TESTS, "all"]:
            lines.append(family.ljust(14) + "".join(str(counts[family][c]).rjust(9) for c in columns))
        return "\n".join(lines)


OUTCOMES = Outcomes()
FAULTS: list[str] = []  # that are found before a test runs


modules.install(ROOT)  # before the tests' own conftest files are read


def pytest_configure(config):
    for marker in ("skip_global_cleanup", "cpu_test", "timeout"):
        config.addinivalue_line("markers", f"{marker}: of vLLM's own conftest")


def pytest_sessionstart(session):
    FAULTS.extend(f"{path} is in neither table of families.py" for path in unknown_files())
    # The helpers of the tests do not say when an answer has ended; here they do.
    import tests.reasoning.utils as reasoning
    import tests.tool_parsers.utils as tools

    stream_tools, stream_reasoning = tools.run_tool_extraction_streaming, reasoning.run_reasoning_extraction_streaming

    def tools_with_end(tool_parser, model_deltas, *args, **kwargs):
        if isinstance(model_deltas, str):
            model_deltas = tools.split_string_into_token_deltas(tool_parser.model_tokenizer, model_deltas)
        return stream_tools(tool_parser, [*model_deltas, Finish()], *args, **kwargs)

    def reasoning_with_end(reasoning_parser, model_deltas, *args, **kwargs):
        return stream_reasoning(reasoning_parser, [*model_deltas, Finish()], *args, **kwargs)

    tools.run_tool_extraction_streaming = tools_with_end
    reasoning.run_reasoning_extraction_streaming = reasoning_with_end


def unknown_files() -> list[str]:
    """The test files of which families.py says nothing."""
    known = (*FAMILY, *(path for paths in NOT_RUN.values() for path in paths))
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    return [path for path in found if not path.startswith(known)]


def pytest_report_teststatus(report):
    if passes_beyond(report):
        return "passed", ".", "PASSED"
    if report.failed and report.nodeid in OUTCOMES.listed and not PARTIAL:
        return "listed", "l", "LISTED"
    return None


def pytest_collectreport(report):
    if report.failed:
        FAULTS.append(f"{report.nodeid} cannot be collected: {report.longreprtext.strip().splitlines()[-1]}")


def pytest_runtest_logreport(report):
    OUTCOMES.add(report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    DRIVER.close()
    if path := os.environ.get("VLLM_FAILURES"):
        pathlib.Path(path).write_text(json.dumps(OUTCOMES.failure, indent=1))
    session.exitstatus = 1 if FAULTS or OUTCOMES.faults() else 0


def pytest_terminal_summary(terminalreporter):
    write = terminalreporter.write_line
    for skipped in terminalreporter.stats.get("skipped", []):
        write(f"SKIPPED by itself: {skipped.nodeid}: {skipped.longrepr[-1]}")
    for reason, paths in NOT_RUN.items():
        write(f"SKIPPED {len(paths)}: {reason}: {' '.join(path.removeprefix('tests/') for path in paths)}")
    for line in [*FAULTS, *OUTCOMES.faults()]:
        write(line)
    write("")
    write(OUTCOMES.table())
    for category, meaning in CATEGORIES.items():
        write(f"{category}: {meaning}")

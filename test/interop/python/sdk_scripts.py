"""Runs scripts which were written for dynamo._core with the package penstock in its place, and the examples.

The scripts are those of dynamo/ here and, if PENSTOCK_ROUTER_DOCUMENT names a text with Python blocks, the ones of it
which import dynamo._core. With the path of a wheel as argument it also compares the wheel with the installed package.
It takes the module fleet of sdk/python/tests, the package, and PENSTOCK_BINARY.
"""

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from fleet import MODEL, NAMES, Up

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[2] / "examples" / "python" / "ttft.py"


def find_scripts() -> dict[str, str]:
    """Return scripts by name, with the import replaced and nothing else."""
    scripts = {path.name: path.read_text() for path in sorted((HERE / "dynamo").glob("*.py"))}
    assert len(scripts) == 3, scripts.keys()
    if document := os.environ.get("PENSTOCK_ROUTER_DOCUMENT"):
        blocks = re.findall(r"^```python\n(.*?)^```", Path(document).read_text(), re.DOTALL | re.MULTILINE)
        found = [block for block in blocks if "dynamo._core" in block]
        assert found, f"no script in {document}"
        scripts |= {f"{document}, script {i + 1}": block for i, block in enumerate(found)}
    return {name: text.replace("dynamo._core", "penstock") for name, text in scripts.items()}


def run_script(name: str, command: list[str], url: str) -> None:
    began = time.monotonic()
    environ = {**os.environ, "PENSTOCK_SERVER": url}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    if done.returncode or done.stderr or not re.search("Generated|expected in", done.stdout):
        sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"PASS {name} ({time.monotonic() - began:.1f} s): {done.stdout.splitlines()[-1]}")


def check_wheel(wheel: str) -> None:
    """Compare the files of a wheel with those which are installed."""
    metadata = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")  # what pip writes
    with zipfile.ZipFile(wheel) as archive:
        built = {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    files = importlib.metadata.files("penstock")
    installed = {str(file): hashlib.sha256(file.locate().read_bytes()).hexdigest() for file in files}
    left, right = ({(n, h) for n, h in files.items() if Path(n).name not in metadata} for files in (built, installed))
    assert left == right and len(left) > 10, f"the wheel and the installed package differ: {sorted(left ^ right)}"
    print(f"PASS the wheel: {len(left)} files as installed")


def main() -> None:
    for wheel in sys.argv[1:]:
        check_wheel(wheel)
    up = Up()
    try:
        with tempfile.TemporaryDirectory() as directory:
            for name, text in find_scripts().items():
                path = Path(directory) / "script.py"
                path.write_text(text)
                run_script(name, [sys.executable, "-B", str(path)], up.url)
        names = ["--namespace", NAMES[0], "--component", NAMES[1], "--endpoint", NAMES[2]]
        run_script(EXAMPLE.name, [sys.executable, "-B", str(EXAMPLE), *names, "--model", MODEL, "1", "2", "3"], up.url)
    finally:
        up.close()


if __name__ == "__main__":
    main()

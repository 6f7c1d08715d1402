"""Fetches vLLM's source distribution from the package index that pip is configured
with, and unpacks what the tests need of it. "pip download" cannot do that: it wants
to build what it downloads.

Usage: fetch.py DIRECTORY, with the Python whose pip is to be used.
"""

import hashlib
import pathlib
import shutil
import sys
import tarfile

from pip._internal.commands import create_command

VERSION = "0.33.0"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
# tests/conftest.py is left out: it imports torch, and none of these tests uses it.
WANTED = ("tests/__init__.py", "tests/tool_parsers/", "tests/reasoning/", "tests/parser/", "vllm/")


def download(archive: pathlib.Path) -> None:
    command = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        links = [c.link for c in finder.find_all_candidates("vllm") if c.link.filename == archive.name]
        if not links:
            sys.exit(f"the package index has no {archive.name}")
        answer = session.get(links[0].url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
        answer.raise_for_status()
        partial = archive.with_suffix(".partial")
        with partial.open("wb") as out:
            shutil.copyfileobj(answer.raw, out)
    with partial.open("rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    if digest != SHA256:
        sys.exit(f"{archive.name} has the SHA-256 {digest}, not {SHA256}")
    partial.rename(archive)


def unpack(archive: pathlib.Path, target: pathlib.Path) -> None:
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, path = member.name.partition("/")
            if member.isfile() and path.endswith(".py") and path.startswith(WANTED):
                member.name = path
                tar.extract(member, partial, filter="data")
    partial.rename(target)


def main() -> None:
    root = pathlib.Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"vllm-{VERSION}-{SHA256[:8]}"
    if not target.is_dir():
        archive = root / f"vllm-{VERSION}.tar.gz"
        download(archive)
        unpack(archive, target)
        archive.unlink()
    print(target)


main()

#!/usr/bin/env bash
# Builds the wheel of sdk/python. Usage: tools/wheel.sh DIR; PYTHON names a Python with pip.
set -euo pipefail
out="$(mkdir -p "${1:?usage: tools/wheel.sh DIR}" && cd "$1" && pwd)"
cd "$(dirname "$0")/.."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# Building writes beside its sources; files which an older version left there would be in the wheel.
mkdir "$work/sdk"
cp -r sdk/python/pyproject.toml sdk/python/src "$work/sdk"
find "$work/sdk" \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +
"${PYTHON:-python3}" -m pip wheel -q --disable-pip-version-check --no-deps -w "$out" "$work/sdk"

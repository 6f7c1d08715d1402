#!/usr/bin/env bash
# Runs vLLM's own tests of its parsers of calls and reasoning against ours: the test
# files of its source distribution, unchanged. vLLM is not installed and none of its
# code runs: what the tests import is served by ./standin, whose parser classes ask
# Penstock's parser through test/parserdriver.
#
#   run.sh [PYTEST_ARGUMENT...]       run.sh -k streaming tests/reasoning/test_….py
#
# A test passes or stands in expected.txt with its category and a reason. Without
# arguments the script fails if a test fails that is not listed, and if a listed one
# passes; with some it runs those tests and prints how they fail. The files that it
# leaves out, and why, are at the end of standin/families.py.
#
# The distribution is kept in $VLLM_TESTS, by default in the user's cache directory.
# Exits with 77, and says why, if the distribution or Python's packages cannot be had.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cache="${VLLM_TESTS:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock-vllm-tests}"
export PYTHONDONTWRITEBYTECODE=1

skip() { echo "SKIPPED: vLLM's parser tests: $1"; exit 77; }

python3 -m venv "$work/venv" >"$work/log" 2>&1 || skip "no venv: $(tail -1 "$work/log")"
python="$work/venv/bin/python"
"$python" -m pip install -q --no-compile --disable-pip-version-check -r "$here/requirements.txt" >"$work/log" 2>&1 ||
  skip "Python packages: $(tail -1 "$work/log")"
source="$("$python" "$here/fetch.py" "$cache" 2>"$work/log")" || skip "the source distribution: $(tail -1 "$work/log")"
(cd "$here/../../.." && go build -o "$work/driver" ./test/parserdriver)

export PYTHONPATH="$here" VLLM_SOURCE="$source" VLLM_EXPECTED="$here/expected.txt" PENSTOCK_PARSE_DRIVER="$work/driver"
arguments=("$@")
[ "$#" = 0 ] || export VLLM_PARTIAL=1
if [ "$#" = 0 ]; then
  arguments=(-q --tb=no --no-header --disable-warnings -r "" --show-capture=no)
  mapfile -t files < <(cd "$here" && "$python" -c 'from standin.families import TESTS
for files in TESTS.values(): print(*files, sep="\n")')
  arguments+=("${files[@]}")
fi
cd "$source"
"$python" -m pytest -c /dev/null --rootdir="$source" -p standin.plugin -p no:cacheprovider "${arguments[@]}"

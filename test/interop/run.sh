#!/usr/bin/env bash
# Starts "penstock up" and test/recorded and holds the official clients against
# both: openai for Go, Python and JavaScript, and anthropic for Python; that for Python
# also against "penstock sim" in every dialect. browser.sh
# then opens the reports of replay and bench in Chromium, zmtp.sh holds our
# ZeroMQ sockets against libzmq, nats.sh has a nats-server that is too old refused, and
# vllmtests/run.sh runs vLLM's own tests of its parsers against ours, and ucx/run.sh the
# transport of bulk data over UCX against Debian's.
# Usage: test/interop/run.sh [PENSTOCK_BINARY]; without one it builds it.
# Needs Go; Python is installed if the machine can (Debian), JavaScript needs
# node and npm. What cannot be installed is left out, and said so loudly.
set -euo pipefail
cd "$(dirname "$0")"
work="$(mktemp -d)"
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  rm -rf "$work"
}
trap cleanup EXIT

bin="${1:-}"
if [ -z "$bin" ]; then
  bin="$work/penstock"
  (cd ../.. && go build -o "$bin" ./cmd/penstock)
fi
bin="$(realpath "$bin")"
(cd ../.. && go build -o "$work/recorded" ./test/recorded)

# Registries are slow: the packages come while the first client runs.
install_python() {
  if ! python3 -m venv "$work/venv" && command -v apt-get; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv
  fi
  python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check -r python/requirements.txt
}
# The package asks for a newer Node than some machines have; what is used of it runs there.
install_js() {
  command -v node && command -v npm && cp -r js "$work/js" && cd "$work/js" &&
    npm install --loglevel=error --no-audit --no-fund --no-package-lock --engine-strict=false
}
install_python >"$work/python.log" 2>&1 & installing_python=$!
install_js >"$work/js.log" 2>&1 & installing_js=$!

# serve NAME COMMAND… starts a server and sets url. One JSON line on standard
# output says that it is ready, and where.
serve() {
  local name="$1" line
  shift
  mkfifo "$work/$name.ready"
  "$@" >"$work/$name.ready" 2>"$work/$name.log" &
  pids+=($!)
  read -r -t 60 line <"$work/$name.ready" || { echo "$name did not start:"; cat "$work/$name.log"; exit 1; }
  url="$(printf '%s' "$line" | sed -n 's/.*"url":"\([^"]*\)".*/\1/p')"
  echo "$name at $url"
}
# The scripts send a body above 1 MiB to see it refused; test/recorded has the same limit.
serve up "$bin" up --http-addr 127.0.0.1:0 --json --max-body-bytes 1048576
export PENSTOCK_UP_URL="$url"
serve recorded "$work/recorded" -recordings recordings
export PENSTOCK_RECORDED_URL="$url"
export PENSTOCK_RECORDINGS="$PWD/recordings"
dialects=()
for d in vllm vllm-legacy sglang trtllm llamacpp; do
  serve "sim-$d" "$bin" sim --dialect "$d" --http-addr 127.0.0.1:0 --speedup 50 --json
  dialects+=("$d=$url")
done

summary=""
failed=0
skipped=0
# hold CLIENT COMMAND… runs one client's checks.
hold() {
  local client="$1" began="$SECONDS" verdict=passed
  shift
  printf '\n--- %s\n' "$client"
  "$@" || { verdict=FAILED; failed=1; }
  summary+="$(printf '%-8s %-26s %3ss' "$verdict" "$client" "$((SECONDS - began))")"$'\n'
}
skip() {
  skipped=$((skipped + 1))
  printf '\n--- %s\nSKIPPED: %s\n' "$1" "$2"
  summary+="$(printf '%-8s %-26s %s' SKIPPED "$1" "$2")"$'\n'
}

openai_go() { go test -count=1 -v ./... | grep -v '^=== '; } # a line for each check
hold "openai-go" openai_go

if wait "$installing_python"; then
  export PYTHONPYCACHEPREFIX="$work/pyc" # nothing is written beside the scripts
  hold "openai (Python)" "$work/venv/bin/python" python/openai_client.py "$PENSTOCK_UP_URL" "$PENSTOCK_RECORDED_URL"
  hold "openai, other engines' words" "$work/venv/bin/python" python/dialects_client.py "${dialects[@]}"
  hold "anthropic (Python)" "$work/venv/bin/python" python/anthropic_client.py "$PENSTOCK_UP_URL" "$PENSTOCK_RECORDED_URL"
else
  skip "openai, anthropic (Python)" "$(tail -1 "$work/python.log")"
fi

if wait "$installing_js"; then
  hold "openai (JavaScript)" node "$work/js/openai.mjs" "$PENSTOCK_UP_URL" "$PENSTOCK_RECORDED_URL"
else
  skip "openai (JavaScript)" "$(command -v npm >/dev/null && grep -m1 error "$work/js.log" || echo "no node with npm")"
fi

# script NAME COMMAND… runs a script of its own, which exits with 77 if it cannot be run.
script() {
  local name="$1" began="$SECONDS" code=0 verdict
  shift
  printf '\n--- %s\n' "$name"
  "$@" || code=$?
  case "$code" in
  0) verdict=passed ;;
  77) verdict=SKIPPED skipped=$((skipped + 1)) ;;
  *) verdict=FAILED failed=1 ;;
  esac
  summary+="$(printf '%-8s %-26s %3ss' "$verdict" "$name" "$((SECONDS - began))")"$'\n'
}
script "reports in a browser" ./browser.sh
script "libzmq" env PENSTOCK_BINARY="$bin" ./zmtp.sh
script "a nats-server too old" ./nats.sh "$bin"
script "vLLM's parser tests" ./vllmtests/run.sh
script "bulk data over UCX" ./ucx/run.sh -short

# Both servers end well when asked to.
for pid in "${pids[@]}"; do kill -INT "$pid"; done
for pid in "${pids[@]}"; do
  wait "$pid" || { failed=1; summary+="FAILED   a server exited $? after an interrupt"$'\n'; }
done
pids=()

printf '\n=== interop\n%s' "$summary"
if [ "$failed" != 0 ]; then
  for name in up recorded; do printf '\n%s said last:\n' "$name"; tail -5 "$work/$name.log"; done
  exit 1
fi
if [ "$skipped" != 0 ]; then
  echo "interop passed as far as it could: not everything could be installed"
  exit 0
fi
echo "interop passed"

#!/usr/bin/env bash
# Starts a fleet of six processes on this machine: a frontend that embeds the NATS
# server, three workers of the built-in model, a router, and a second frontend that
# sends to the router. Prints where they are once both frontends serve, and stops
# all of them on Ctrl-C, or when one of them ends. Logs are in the directory that
# it names.
#
#   tools/fleet.sh                    # builds the binary; ports are chosen freely
#   PENSTOCK=./penstock tools/fleet.sh --kv-cache-blocks 512   # flags go to the workers
#   tools/fleet.sh --engine sim                                # workers that only take the time
#   FLEET_CHECK=1 tools/fleet.sh      # starts, asks both frontends once, stops
set -euo pipefail
unset CDPATH # cd would say where it went
set -m # processes get groups of their own: Ctrl-C is this script's to pass on, once

root="$(cd "$(dirname "$0")/.." && pwd)"
dir="$(mktemp -d "${TMPDIR:-/tmp}/penstock-fleet-XXXXXX")"
pids=()

stop() {
  trap - EXIT INT TERM
  [ ${#pids[@]} -gt 0 ] || return 0 # nothing was started
  # The one with the NATS server last: the others say there that they leave.
  for pid in "${pids[@]:1}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]:1}"; do wait "$pid" || true; done
  kill -TERM "${pids[0]}" 2>/dev/null || true
  wait
}
trap 'stop; exit 0' INT TERM
trap stop EXIT

fail() {
  printf 'fleet: %s; the logs are in %s\n' "$1" "$dir" >&2
  exit 1
}

PENSTOCK="${PENSTOCK:-}"
if [ -z "$PENSTOCK" ]; then
  PENSTOCK="$dir/penstock"
  echo "fleet: building penstock; the first build takes minutes" >&2
  (cd "$root" && go build -o "$PENSTOCK" ./cmd/penstock) || {
    rm -rf "$dir"
    echo "fleet: go build failed, see above; PENSTOCK=FILE names a binary that is built" >&2
    exit 1
  }
fi

# launch NAME COMMAND FLAG... starts a process, and waits for the line of JSON that
# it prints when it is ready.
launch() {
  local name="$1" command="$2"
  shift 2
  "$PENSTOCK" "$command" --json "$@" >"$dir/$name.json" 2>"$dir/$name.log" &
  local pid=$!
  pids+=("$pid")
  for _ in $(seq 600); do
    [ -s "$dir/$name.json" ] && return
    kill -0 "$pid" 2>/dev/null || { cat "$dir/$name.log" >&2; fail "$name did not start"; }
    sleep 0.05
  done
  fail "$name was not ready within 30 s"
}

# field NAME KEY prints a string that the process said of itself.
field() { sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p" "$dir/$1.json"; }

# get asks a process of this machine, whatever proxy and settings the user has for
# others.
get() { curl -q --noproxy '*' -fsS "$@"; }

# healthy NAME waits until a frontend serves a model.
healthy() {
  for _ in $(seq 600); do
    if get -o /dev/null "$(field "$1" url)/health" 2>/dev/null; then return; fi
    sleep 0.05
  done
  fail "$1 serves no model after 30 s"
}

launch frontend-1 frontend --nats-listen 127.0.0.1:0 --drain-grace 0s --http-addr "${FRONTEND_1:-127.0.0.1:0}"
nats="$(field frontend-1 nats)"
for i in 1 2 3; do
  launch "worker-$i" worker --nats "$nats" --data-dir "$dir/worker-$i" --http-addr 127.0.0.1:0 "$@"
done
launch router router --nats "$nats" --http-addr 127.0.0.1:0
launch frontend-2 frontend --nats "$nats" --component router --drain-grace 0s --http-addr "${FRONTEND_2:-127.0.0.1:0}"
healthy frontend-1
healthy frontend-2
# The first model's name: that of the engine that the workers were given.
model="$(get "$(field frontend-1 url)/v1/models" | grep -o '"id":"[^"]*"' | sed -n '1s/"id":"\(.*\)"/\1/p')"

ask() {
  get "$1/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"model": "'"$model"'", "max_tokens": 16, "temperature": 0, "messages": [{"role": "user", "content": "Where does the water go?"}]}'
}

cat <<END

  A fleet of six processes serves $model.

  frontend 1   $(field frontend-1 url)   sends to the workers itself
  frontend 2   $(field frontend-2 url)   sends to the router
  router       $(field router url)
  workers      $(field worker-1 url)  $(field worker-2 url)  $(field worker-3 url)
  NATS         $nats

  Try it:

    curl -N $(field frontend-1 url)/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{"model": "$model", "stream": true, "messages": [{"role": "user", "content": "Where does the water go?"}]}'
    $PENSTOCK workers --server $(field frontend-1 url)
    kill -KILL ${pids[1]}        # a worker dies: its requests go on at another

  Another worker:  $PENSTOCK worker --nats $nats${*:+ $*}
  Logs:            $dir
  Stop:            Ctrl-C

END

if [ -n "${FLEET_CHECK:-}" ]; then
  ask "$(field frontend-1 url)" >"$dir/answer-1.json" || fail "frontend 1 did not answer"
  ask "$(field frontend-2 url)" >"$dir/answer-2.json" || fail "frontend 2 did not answer"
  first="$(sed 's/.*"content":"\([^"]*\)".*/\1/' "$dir/answer-1.json")"
  second="$(sed 's/.*"content":"\([^"]*\)".*/\1/' "$dir/answer-2.json")"
  [ "$first" = "$second" ] || fail "the frontends gave different answers"
  echo "  both frontends gave the same answer"
  stop
  grep -l "panic:" "$dir"/*.log && fail "a process crashed"
  rm -rf "$dir"
  exit 0
fi

# Until one of the frontends ends; a worker may come and go.
while kill -0 "${pids[0]}" 2>/dev/null && kill -0 "${pids[5]}" 2>/dev/null; do
  wait -n "${pids[@]}" 2>/dev/null || true
  sleep 0.5
done
fail "a frontend ended"

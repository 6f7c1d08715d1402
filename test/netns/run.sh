#!/usr/bin/env bash
# Runs the fleets of docs/tutorial.md and docs/ops/fleet.md, as they are written there for
# several hosts, in two network namespaces with the addresses of the page, host names
# of their own and one link. Then it adds what a fleet may have besides: a worker beside the frontend, a
# router, a second frontend, events over ZeroMQ, an encode worker on the other host, a holder of rows there, a worker
# that tells others a loopback address, which doctor must name, and media which a worker fetches from the other host.
# Usage: test/netns/run.sh PENSTOCK_BINARY
# It takes root and the program ip (iproute2). Exits with 77, and says why, if no
# namespaces can be made.
set -euo pipefail
bin="$(realpath "$1")"
cd "$(dirname "$0")/../.."
work="$(mktemp -d)"
ns="penstock-$$-"
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  for host in 5 6; do ip netns del "$ns$host" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

skip() {
  echo "SKIPPED: the fleet on two hosts was not tried: $1"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "network namespaces take root"
for program in ip unshare hostname curl; do
  command -v "$program" >/dev/null || skip "there is no program $program"
done
{
  ip netns add "${ns}5" && ip netns add "${ns}6" &&
    ip -n "${ns}5" link add eth0 type veth peer name eth0 netns "${ns}6"
} >"$work/ip.log" 2>&1 || skip "$(tail -1 "$work/ip.log")"
for host in 5 6; do
  ip -n "$ns$host" addr add "10.0.0.$host/24" dev eth0
  ip -n "$ns$host" link set lo up
  ip -n "$ns$host" link set eth0 up
done
mkdir "$work/bin"
ln -s "$bin" "$work/bin/penstock"

# enter HOST sets cmd to what runs a command on a host: 5 is 10.0.0.5.
enter() {
  cmd=(ip netns exec "$ns$1" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "host-$1" env PATH="$work/bin:$PATH")
}

# on HOST COMMAND… runs a command there.
on() {
  enter "$1"
  "${cmd[@]}" "${@:2}"
}

# start NAME HOST COMMAND… runs a process of the fleet until the end; its log is $work/NAME.log.
start() {
  enter "$2"
  "${cmd[@]}" "${@:3}" >"$work/$1.log" 2>&1 & # no function: the process itself is to be stopped
  pids+=($!)
}

# fails WHY… ends the test with the logs.
fails() {
  echo "FAILED: $*"
  for log in "$work"/*.log; do
    echo "--- $(basename "$log")"
    tail -25 "$log"
  done
  exit 1
}

# eventually WHAT COMMAND… repeats a command until it succeeds, for up to 30 s.
eventually() {
  local what="$1" until=$((SECONDS + 30))
  shift
  until "$@" >"$work/last" 2>&1; do
    [ "$SECONDS" -lt "$until" ] || fails "$what: $(tail -5 "$work/last")"
    sleep 0.2
  done
  echo "ok: $what"
}

# ready URL N: the frontend at URL on 10.0.0.5 has N workers that answer.
ready() { [ "$(on 5 penstock workers --server "$1" --json | grep -o '"state":"ready"' | wc -l)" = "$2" ]; }

# answers HOST URL: a conversation with the frontend there.
answers() {
  on "$1" curl -sf -m 20 "$2/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"model": "penstock-tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "Where does the water go?"}]}'
}

# served NAME HOST: the process of that log tells others an address of the host.
served() { grep -q "msg=ready .*addr=tcp://10.0.0.$2:" "$work/$1.log"; }

# stop ends all processes of the fleet.
stop() {
  for pid in "${pids[@]}"; do kill "$pid"; done
  for pid in "${pids[@]}"; do wait "$pid" || fails "a process ended with $? when it was told to stop"; done
  pids=()
}

# commands NAME starts the command lines on standard input, each on the host that its
# comment names: on 10.0.0.N. What they print is in NAME-1.log and so on.
commands() {
  local line host n=0
  while read -r line; do
    n=$((n + 1)) host="${line##*# on 10.0.0.}"
    # shellcheck disable=SC2086 # the words of the line
    start "$1-$n" "${host%%[^0-9]*}" ${line%%#*}
  done
  [ "$n" = "$2" ] || fails "$1 has $n command lines, want $2"
}

# The tutorial's fleet: on several hosts it has the first one's address in place of 127.0.0.1.
commands tutorial 3 < <(sed -n '/^## 3. Start a fleet/,/^## 4/s/^    \(penstock [^#]*\)#.*/\1/p' docs/tutorial.md |
  sed -e 's/127\.0\.0\.1/10.0.0.5/' -e 's/$/# on 10.0.0.6/' -e '/^penstock frontend/s/10\.0\.0\.6$/10.0.0.5/')
eventually "the tutorial's fleet: the worker of 10.0.0.6 is ready at 10.0.0.5" ready http://127.0.0.1:8000 1
eventually "the tutorial's fleet: a conversation goes from 10.0.0.5 to 10.0.0.6" answers 5 http://127.0.0.1:8000
stop

# The page's lines, which name the hosts, and what else a fleet may have.
commands fleet 2 < <(sed -n 's/^    \(penstock .*# on 10\.0\.0\.[56]\)/\1/p' docs/ops/fleet.md)
eventually "the page's fleet: the worker of 10.0.0.6 is ready at 10.0.0.5" ready http://127.0.0.1:8000 1
eventually "the page's fleet: a conversation goes from 10.0.0.5 to 10.0.0.6" answers 5 http://127.0.0.1:8000
served fleet-2 6 || fails "the worker does not say that it is at 10.0.0.6"
grep -q 'msg="address chosen" .*addr=10.0.0.6:0' "$work/fleet-2.log" || fails "the worker does not say which address it chose"

nats=nats://10.0.0.5:4222
start beside 5 penstock worker --nats $nats
start frontend-6 6 penstock frontend --nats $nats
eventually "both workers are ready at 10.0.0.5" ready http://127.0.0.1:8000 2
served beside 5 || fails "the worker beside the frontend does not say that it is at 10.0.0.5"
eventually "a frontend on 10.0.0.6 serves" answers 6 http://127.0.0.1:8000
on 5 penstock doctor --for frontend --nats $nats --http-addr 127.0.0.1:0 >"$work/doctor.log" 2>&1 || fails "doctor fails at a sound fleet"
echo "ok: doctor finds nothing wrong"

start router 6 penstock router --nats $nats
start routed 5 penstock frontend --nats $nats --component router --http-addr 127.0.0.1:8002
eventually "a conversation goes through a router on 10.0.0.6" answers 5 http://127.0.0.1:8002

start zmq-5 5 penstock frontend --nats-listen 10.0.0.5:4223 --event-plane zmq --http-addr 127.0.0.1:8003
start zmq-6 6 penstock worker --nats nats://10.0.0.5:4223 --event-plane zmq
eventually "a conversation with events over ZeroMQ" answers 5 http://127.0.0.1:8003
live() { on 5 penstock workers --server http://127.0.0.1:8003 | grep -q 'live, event [1-9]'; }
eventually "cache events come over ZeroMQ from 10.0.0.6" live
on 6 penstock doctor --for worker --nats nats://10.0.0.5:4223 --event-plane zmq >"$work/doctor-zmq.log" 2>&1 || fails "doctor fails at a sound fleet over ZeroMQ"
grep -q 'ok    event plane .*all 2 processes' "$work/doctor-zmq.log" || fails "doctor does not hear both processes over ZeroMQ"
echo "ok: doctor hears both event planes"

# What is encoded on 10.0.0.6 for a worker on 10.0.0.5, which has no memory in common with it, is answered as by up.
sound() {
  printf 'RIFF\244\076\000\000WAVEfmt \020\000\000\000\001\000\001\000\200\076\000\000\000\175\000\000\002\000\020\000data\200\076\000\000'
  head -c 16000 "$bin"
}
cat >"$work/show.json" <<EOF
{"model": "penstock-tiny", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": [
 {"type": "image_url", "image_url": {"url": "data:image/png;base64,$(base64 -w0 examples/multimodal/picture.png)"}},
 {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,$(sound | base64 -w0)"}},
 {"type": "text", "text": "What is shown?"}]}]}
EOF
shown() { on 5 curl -sf -m 20 "$1/v1/chat/completions" -H 'Content-Type: application/json' -d "@$work/show.json" | grep -o '"content":"[^"]*"'; }
start up 5 penstock up --workers 1 --http-addr 127.0.0.1:8004
start encoding 5 penstock frontend --nats-listen 10.0.0.5:4224 --http-addr 127.0.0.1:8005
start encoding-5 5 penstock worker --nats nats://10.0.0.5:4224 --http-addr 127.0.0.1:8006
start encoding-6 6 penstock worker --nats nats://10.0.0.5:4224 --http-addr 127.0.0.1:8006 --role encode
eventually "a worker and an encode worker are ready" ready http://127.0.0.1:8005 2
eventually "up answers about a picture and a sound" shown http://127.0.0.1:8004
want="$(shown http://127.0.0.1:8004)"
[ "$(shown http://127.0.0.1:8005)" = "$want" ] || fails "with an encode worker on 10.0.0.6 the answer is not $want"
for host in 5 6; do
  on $host curl -sf http://127.0.0.1:8006/metrics | grep '^penstock_encode_jobs_total{outcome="ok"}' >"$work/jobs-$host"
done
grep -q ' 0$' "$work/jobs-5" && grep -q ' 2$' "$work/jobs-6" || fails "not encoded on 10.0.0.6: $(cat "$work"/jobs-*)"
echo "ok: an encode worker on 10.0.0.6 encodes for a worker on 10.0.0.5"

# What one of two workers on different hosts has encoded the other one fetches from it.
start holding 5 penstock frontend --nats-listen 10.0.0.5:4225 --http-addr 127.0.0.1:8007 --router-mode round-robin
start holding-5 5 penstock worker --nats nats://10.0.0.5:4225 --http-addr 127.0.0.1:8008
start holding-6 6 penstock worker --nats nats://10.0.0.5:4225 --http-addr 127.0.0.1:8008
eventually "two workers are ready" ready http://127.0.0.1:8007 2
[ "$(shown http://127.0.0.1:8007)" = "$want" ] || fails "of two workers the answer of the first is not $want"
known() {
  for host in 5 6; do on $host curl -sf http://127.0.0.1:8008/metrics | grep -q '^penstock_embedding_index_entries 2$' || return 1; done
}
eventually "the workers know which of them holds the picture and the sound" known
[ "$(shown http://127.0.0.1:8007)" = "$want" ] || fails "of two workers the answer of the second is not $want"
for host in 5 6; do
  on $host curl -sf http://127.0.0.1:8008/metrics | sed -n 's/^penstock_encode_jobs_total{outcome="ok"} //p'
done >"$work/held-jobs"
[ "$(sort "$work/held-jobs" | tr '\n' ' ')" = "0 2 " ] || fails "two workers encoded $(tr '\n' ' ' <"$work/held-jobs")objects, want 2 by one of them"
echo "ok: a worker fetches from the other host what is encoded there"

start loopback 6 penstock worker --nats $nats --rpc-addr 127.0.0.1:0
named() {
  ! on 5 penstock doctor --for frontend --nats $nats --http-addr 127.0.0.1:0 >"$work/doctor.log" 2>&1 &&
    grep -q '^fail .*host-6 .*loopback address tcp://127.0.0.1:' "$work/doctor.log"
}
eventually "doctor on 10.0.0.5 names the loopback address of host-6" named
grep -q 'level=WARN.*loopback' "$work/loopback.log" || fails "the worker with a loopback address does not say so"

# Media. A frontend decodes a picture, or has the processor of an engine on the other host look at it, and lends what
# comes of it to the worker there, which fetches it over the plane for bulk data.
start media-5 5 penstock frontend --nats-listen 10.0.0.5:4234 --http-addr 127.0.0.1:8014
start media-6 6 penstock worker --nats nats://10.0.0.5:4234 --frontend-decoding --mm-transfer network
start vllm-6 6 penstock sim --dialect vllm --http-addr 127.0.0.1:9001 --served-model-name seer --kv-events tcp://127.0.0.1:9101 \
  --kv-replay tcp://127.0.0.1:9102 --export-model "$work/seer" --family qwen2-vl
start features-5 5 penstock frontend --nats-listen 10.0.0.5:4235 --http-addr 127.0.0.1:8015 --dyn-chat-processor vllm
start features-6 6 penstock worker --nats nats://10.0.0.5:4235 \
  --engine vllm=http://127.0.0.1:9001,events=tcp://127.0.0.1:9101,replay=tcp://127.0.0.1:9102
# sees URL MODEL: a conversation about a picture.
sees() {
  printf '{"model": "%s", "max_tokens": 8, "messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}}]}]}' "$2" "$(base64 -w0 examples/multimodal/picture.png)" >"$work/picture.json"
  on 5 curl -sf -m 20 "$1/v1/chat/completions" -H 'Content-Type: application/json' -d "@$work/picture.json"
}
# wrote URL BYTES: what the frontend there has sent over TCP, at least.
wrote() {
  on 5 curl -sf "$1/metrics" | grep '^penstock_xfer_bytes_total{side="writer",transport="tcp"}' | awk -v least="$2" '{ print; exit !($2 >= least) }'
}
for at in "8014 penstock-tiny" "8015 seer"; do
  read -r port model <<<"$at"
  eventually "a conversation about a picture with $model" sees "http://127.0.0.1:$port" "$model"
  eventually "what was made of it went to 10.0.0.6 over TCP: $(wrote "http://127.0.0.1:$port" 0)" wrote "http://127.0.0.1:$port" 65537
done
for log in media-6 features-6; do
  ! grep -q 'level=\(WARN\|ERROR\).*\(bulk\|fetch\)' "$work/$log.log" || fails "the worker could not fetch over the plane for bulk data"
done

stop
echo "the fleet on two hosts passed"

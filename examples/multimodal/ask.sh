#!/usr/bin/env bash
# Asks about a picture, and says which worker answered and how much of the prompt
# it had in its cache.
#
#   examples/multimodal/ask.sh PICTURE [QUESTION]          # a file, or the URL of one
#   examples/multimodal/ask.sh --print PICTURE [QUESTION]  # the request, and nothing is sent
#
# URL is that of Penstock (http://127.0.0.1:8000), MODEL the model if it has several.
set -euo pipefail

URL="${URL:-http://127.0.0.1:8000}"
print=
if [ "${1:-}" = --print ]; then print=1; shift; fi
[ $# -gt 0 ] || { echo "usage: ask.sh [--print] FILE-OR-URL [QUESTION]" >&2; exit 2; }
question="${2:-What does this picture show?}"

get() { curl -q --noproxy '*' -sS "$@"; }

# quoted prints a text as JSON.
quoted() {
  local s="${1//\\/\\\\}"
  printf '"%s"' "${s//\"/\\\"}"
}

MODEL="${MODEL:-$(get "$URL/v1/models" | grep -o '"id":"[^"]*"' | sed -n '1s/"id":"\(.*\)"/\1/p')}"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT

# The request goes by a file: a picture is longer than a command line may be.
{
  printf '{"model": %s, "max_tokens": 32, "temperature": 0, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ' "$(quoted "$MODEL")"
  case "$1" in
    http://* | https://* | data:*) quoted "$1" ;;
    *) printf '"data:application/octet-stream;base64,'; base64 <"$1" | tr -d '\n'; printf '"' ;;
  esac
  printf '}}, {"type": "text", "text": %s}]}]}' "$(quoted "$question")"
} >"$dir/request"
if [ -n "$print" ]; then cat "$dir/request"; exit 0; fi
status="$(get -D "$dir/header" -o "$dir/answer" -w '%{http_code}' -H 'Content-Type: application/json' --data-binary "@$dir/request" "$URL/v1/chat/completions")"
if [ "$status" != 200 ]; then
  cat "$dir/answer" >&2
  exit 1
fi

# field NAME prints a number or a text of the answer.
field() { sed -n "s/.*\"$1\":\"\{0,1\}\(\([^\",}\\\\]\|\\\\.\)*\).*/\1/p" "$dir/answer"; }
worker="$(sed -n 's/^x-penstock-worker: *\([0-9]*\).*/\1/Ip' "$dir/header")"
cached="$(field cached_tokens)"
printf 'worker %s: %s tokens, %s of them cached: %s\n' "$worker" "$(field prompt_tokens)" "${cached:-0}" "$(field content)"

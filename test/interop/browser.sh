#!/usr/bin/env bash
# Opens the HTML reports of replay and bench in a headless Chromium and checks what
# it shows: every figure's marks, the legend, values under the pointer, contrast in
# light and dark, no overflow, no request, and that hostile texts run nothing.
# Usage: test/interop/browser.sh [DIRECTORY FOR PICTURES]
# Needs Go, node with npm, and Chromium, which is installed if the machine can
# (Debian). Exits with 77, and says why, if it cannot be run.
set -euo pipefail
cd "$(dirname "$0")"
pictures="${1:+$(realpath -m "$1")}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

skip() { echo "SKIPPED: $1"; exit 77; }

chromium="$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)"
if [ -z "$chromium" ] && command -v apt-get >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >"$work/apt.log" 2>&1 || true
  chromium="$(command -v chromium || true)"
fi
[ -n "$chromium" ] || skip "no Chromium, and it could not be installed: $(tail -1 "$work/apt.log" 2>/dev/null)"
command -v node >/dev/null && command -v npm >/dev/null || skip "no node with npm"

cp -r js browser "$work"
(cd "$work/browser" && npm install --loglevel=error --no-audit --no-fund --no-package-lock) >"$work/npm.log" 2>&1 ||
  skip "playwright-core could not be installed: $(grep -m1 error "$work/npm.log")"

# The pages are made anew, of made-up results, beside the results themselves.
mkdir "$work/pages"
(cd ../.. && go test -count=1 ./internal/replay/report -run '^TestPages$' -args -pages "$work/pages")
node "$work/browser/pages.mjs" "$chromium" "$work/pages" "$work/profile" ${pictures:+"$pictures"}

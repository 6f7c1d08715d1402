#!/usr/bin/env bash
# Builds the release archives into DIR, an SBOM for each (CycloneDX), and SHA256SUMS. The same commit and the same
# version of Go give the same bytes, wherever they are built.
#
#   tools/release.sh DIR                   # linux and darwin, on amd64 and arm64
#   tools/release.sh DIR linux/amd64       # one target
#   tools/release.sh --check [TARGET...]   # builds the commit on two paths without a common cache, and compares all bytes
set -euo pipefail
unset CDPATH # cd would say where it went

usage() {
  sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
  exit 2
}

fail() {
  printf 'release: %s\n' "$1" >&2
  exit 1
}

root="$(cd "$(dirname "$0")/.." && pwd)"
work="$(mktemp -d "${TMPDIR:-/tmp}/penstock-release-XXXXXX")"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# check builds the commit in two clones and compares the results.
check() {
  local n cache
  cache="$(go env GOCACHE)" # the second build has a cache of its own
  for n in first second/and-elsewhere; do
    mkdir -p "$work/$n"
    git clone -q --no-local "$root" "$work/$n/source"
    git -C "$work/$n/source" checkout -q "$(git -C "$root" rev-parse HEAD)"
    GOCACHE="$cache" "$work/$n/source/tools/release.sh" "$work/$n/out" "$@"
    cache="$work/cache"
  done
  diff -r "$work/first/out" "$work/second/and-elsewhere/out" || fail "two builds of one commit differ"
  printf 'two builds on two paths have the same bytes:\n'
  cat "$work/first/out/SHA256SUMS"
}

[ $# -gt 0 ] || usage
case "$1" in
--check) shift; check "$@"; exit ;;
-*) usage ;;
esac
out="$1"
shift
targets=("$@")
[ $# -gt 0 ] || targets=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64)
for target in "${targets[@]}"; do
  case "$target" in */*) ;; *) usage ;; esac
done
mkdir -p "$out"
out="$(cd "$out" && pwd)"
[ -z "$(ls -A "$out")" ] || fail "$out is not empty: name a new directory"

cd "$root"
# Settings of this machine do not enter the build, nor what go env -w has set. What says from where modules come, and
# where they are kept, does not change the bytes and stays.
for name in GOPROXY GOPRIVATE GONOPROXY GOSUMDB GONOSUMDB GOINSECURE GOMODCACHE GOCACHE; do
  value="$(go env "$name")"
  export "$name=$value"
done
export GOENV=off GOFLAGS='' GOEXPERIMENT='' GOAMD64=v1 GOARM64=v8.0 CGO_ENABLED=0 GOWORK=off
unset GOOS GOARCH
epoch="$(git log -1 --format=%ct)" || fail "the time of the commit is needed: release from a git checkout"
[ -z "$(git status --porcelain)" ] || printf 'release: the tree has changes: the archives are of no commit\n' >&2

# What all archives have: documents, units, completion and man pages.
tree="$work/tree"
mkdir -p "$tree/man/man1" "$tree/completion"
cp LICENSE README.md CHANGELOG.md SECURITY.md "$tree"
cp -R deploy/systemd "$tree/systemd"
go build -trimpath -tags man -o "$work/penstock" ./cmd/penstock
"$work/penstock" man --time "$epoch" "$tree/man/man1"
for shell in bash zsh fish; do "$work/penstock" completion "$shell" >"$tree/completion/penstock.$shell"; done
version="$("$work/penstock" version | sed -n 's/^penstock //p')"

go build -trimpath -o "$work/release" ./tools/release
# Everything is built before the first archive is written: if DIR is in the checkout, the tree has changes from then on,
# which go build would record.
for target in "${targets[@]}"; do
  GOOS="${target%/*}" GOARCH="${target#*/}" go build -trimpath -ldflags='-s -w' -o "$work/${target%/*}-${target#*/}" ./cmd/penstock
done
for target in "${targets[@]}"; do
  name="penstock-$version-${target%/*}-${target#*/}"
  "$work/release" -binary "$work/${target%/*}-${target#*/}" -version "$version" -name "$name" -tree "$tree" -time "$epoch" -out "$out"
  printf '%s.tar.gz\n' "$name"
done
"$work/release" -sums "$out"

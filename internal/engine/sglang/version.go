package sglang

import (
	"slices"
	"strconv"
	"strings"

	"penstock/internal/engine/remote"
)

// releaseVersion is a release of SGLang: 0.5.17 is {0, 5, 17}.
type releaseVersion [3]int

// The releases that changed how the engine treats salts, and what it reports of its cache.
var (
	extraKeyVersion        = releaseVersion{0, 5, 11} // extra_key reaches the cache; earlier neither field did
	announcedEventsVersion = releaseVersion{0, 5, 13} // /server_info announces where events are published
	cacheSaltVersion       = releaseVersion{0, 5, 18} // cache_salt reaches the cache, and events contain it; earlier it was ignored
	adapterEventsVersion   = releaseVersion{0, 5, 22} // events contain LoRA adapters; earlier blocks with the same tokens had one hash
)

// parseVersion parses the version reported by a server: 0.5.17, 0.5.6.post2, 0.5.18rc1. ok is false if it is
// not a release, such as 0.0.0.dev1 of a build from a checkout.
func parseVersion(text string) (v releaseVersion, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(text, "v"), ".", 4)
	if len(parts) < 3 || len(parts) == 4 && strings.HasPrefix(parts[3], "dev") {
		return v, false
	}
	for i := range v {
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i == 2 && end > 0 {
			digits = digits[:end] // 18rc1
		}
		n, err := strconv.Atoi(digits)
		if err != nil || n < 0 {
			return releaseVersion{}, false
		}
		v[i] = n
	}
	return v, v != releaseVersion{}
}

func (v releaseVersion) isBefore(o releaseVersion) bool { return slices.Compare(v[:], o[:]) < 0 }

// hidesAdapters reports whether the events of a version lack LoRA adapters. A version that is not a release
// counts as new.
func hidesAdapters(text string) bool {
	v, ok := parseVersion(text)
	return ok && v.isBefore(adapterEventsVersion)
}

// saltFields returns the fields of /generate that isolate salts in a version, and whether the version ignores
// both or a proof must decide. An unknown version gets both fields, since it ignores unknown ones.
func saltFields(text string) ([]string, remote.SaltSupport) {
	v, ok := parseVersion(text)
	switch {
	case !ok:
		return []string{"cache_salt", "extra_key"}, remote.SaltsUnknown
	case v.isBefore(extraKeyVersion):
		return []string{"extra_key"}, remote.SaltsIgnored
	case v.isBefore(cacheSaltVersion):
		return []string{"extra_key"}, remote.SaltsUnknown
	}
	return []string{"cache_salt"}, remote.SaltsUnknown
}

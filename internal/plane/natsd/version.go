package natsd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MinServerVersion is the oldest supported NATS server: discovery needs per-key TTLs, which 2.11
// introduced.
const MinServerVersion = "2.11"

// ErrTooOld is in the chain of Connect's error when the server is older than MinServerVersion. A
// retry does not help.
var ErrTooOld = errors.New("the NATS server is too old")

// checkVersion returns ErrTooOld with advice for a version below MinServerVersion. It accepts a
// version that it cannot parse.
func checkVersion(version string) error {
	major, minor, ok := parseVersion(version)
	leastMajor, leastMinor, _ := parseVersion(MinServerVersion)
	if !ok || major > leastMajor || major == leastMajor && minor >= leastMinor {
		return nil
	}
	return fmt.Errorf("%w: it has version %s, and Penstock needs %s or newer; upgrade it, or embed one in a process of the fleet with --nats-listen",
		ErrTooOld, version, MinServerVersion)
}

// parseVersion parses the first two numbers of a version such as 2.11.0-RC.1.
func parseVersion(version string) (major, minor int, ok bool) {
	first, rest, ok := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, ok && err1 == nil && err2 == nil
}

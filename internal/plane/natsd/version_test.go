package natsd_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

// A server without what the planes need is refused at connect, with what to do.
func TestServerTooOld(t *testing.T) {
	for _, version := range []string{"2.9.10", "2.10.27", "1.4.1", "2.10.0-beta.8"} {
		url := natsdtest.ServeVersion(t, version)
		nc, err := natsd.Connect(url, "test", nil, nats.Timeout(fixturetest.TimeLeft(t)))
		if err == nil {
			nc.Close()
			t.Errorf("%s: connected", version)
			continue
		}
		if !errors.Is(err, natsd.ErrTooOld) {
			t.Errorf("%s: error %v, want ErrTooOld", version, err)
		}
		for _, want := range []string{url, version, natsd.MinServerVersion, "--nats-listen"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q, want %q in it", version, err, want)
			}
		}
	}
}

// New enough servers are accepted, and so are servers with an unparsable version, which may well
// work.
func TestServerNewEnough(t *testing.T) {
	for _, version := range []string{natsd.MinServerVersion + ".0", "2.11.0-RC.1", "2.12.3", "2.100.0", "3.0.0", "", "main"} {
		nc, err := natsd.Connect(natsdtest.ServeVersion(t, version), "test", nil, nats.Timeout(fixturetest.TimeLeft(t)))
		if err != nil {
			t.Errorf("%q: %v", version, err)
			continue
		}
		nc.Close()
	}
}

// The pages that say what a NATS server of one's own must be say what is checked.
func TestPagesStateTheLeastVersion(t *testing.T) {
	for _, page := range []string{"README.md", "docs/ops/fleet.md", "docs/format/disco.md"} {
		text, err := os.ReadFile("../../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		if want := "NATS " + natsd.MinServerVersion + " or newer"; !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %q", page, want)
		}
	}
}

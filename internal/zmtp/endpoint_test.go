package zmtp

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestEndpoints(t *testing.T) {
	for _, c := range []struct {
		in, out  string // out "" is in
		network  string
		wildcard bool
		rank2    string
	}{
		{in: "tcp://host:5557", network: "tcp", rank2: "tcp://host:5559"},
		{in: "tcp://10.0.0.1:5557", network: "tcp", rank2: "tcp://10.0.0.1:5559"},
		{in: "tcp://*:5557", network: "tcp", wildcard: true, rank2: "tcp://*:5559"},
		{in: "tcp://0.0.0.0:5557", network: "tcp", wildcard: true, rank2: "tcp://0.0.0.0:5559"},
		{in: "tcp://[::]:5557", network: "tcp", wildcard: true, rank2: "tcp://[::]:5559"},
		{in: "tcp://[::1]:65533", network: "tcp", rank2: "tcp://[::1]:65535"},
		{in: "tcp://[fe80::1%eth0]:65534", network: "tcp"},
		{in: "tcp://host:*", out: "tcp://host:0", network: "tcp", wildcard: true},
		{in: "ipc:///run/events", network: "unix"},
		{in: "ipc://@abstract", network: "unix"},
	} {
		e, err := ParseEndpoint(c.in)
		if c.out == "" {
			c.out = c.in
		}
		if err != nil || e.String() != c.out || e.Network() != c.network || e.IsWildcard() != c.wildcard || e.RankEndpoint(2).String() != c.rank2 || e.RankEndpoint(0) != e || e.IsZero() {
			t.Errorf("%s: %v %s wildcard %v, rank 2 %s, %v", c.in, e, e.Network(), e.IsWildcard(), e.RankEndpoint(2), err)
		}
	}
	for _, bad := range []string{"", "host:5557", "udp://host:1", "inproc://x", "tcp://host", "tcp://:5557", "tcp://host:70000", "tcp://host:-1", "tcp://::1:5", "ipc://", "ipc://a\x00b", "ipc://" + strings.Repeat("x", 200), "tcp://user@host:1", "tcp://host:1/path"} {
		if e, err := ParseEndpoint(bad); err == nil {
			t.Errorf("%q is read as %v", bad, e)
		}
	}
	if err := endpoint(t, "tcp://*:5557").checkDialable(); err == nil || !strings.Contains(err.Error(), "one can listen there") {
		t.Errorf("all interfaces can be dialled: %v", err)
	}
}

func TestEndpointOfListeners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, s := range []string{"tcp://127.0.0.1:0", "tcp://*:0", "ipc://" + path} {
		ln, err := Listen(endpoint(t, s))
		if err != nil {
			t.Fatal(err)
		}
		e := EndpointOf(ln.Addr())
		if back, err := ParseEndpoint(e.String()); err != nil || back != e || strings.Contains(s, "*") != e.IsWildcard() {
			t.Errorf("%s is %v, read back %v, %v", s, e, back, err)
		}
		_ = ln.Close()
	}
}

// TestListenTakesOverAStaleSocket holds that a file which a killed process left
// is no obstacle, and that one in use is.
func TestListenTakesOverAStaleSocket(t *testing.T) {
	ep := endpoint(t, "ipc://"+filepath.Join(t.TempDir(), "s"))
	ln, err := Listen(ep)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Listen(ep); err == nil {
		_ = second.Close()
		t.Error("two listen at one path")
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = ln.Close()
	again, err := Listen(ep)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func FuzzParseEndpoint(f *testing.F) {
	for _, s := range []string{"tcp://*:1", "tcp://[::1]:5", "ipc:///x", "tcp://h:*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseEndpoint(s)
		if err != nil {
			return
		}
		if back, err := ParseEndpoint(e.String()); err != nil || back != e {
			t.Errorf("%q is %q, which reads as %v, %v", s, e, back, err)
		}
	})
}

func TestIsLoopback(t *testing.T) {
	for text, want := range map[string]bool{
		"tcp://127.0.0.1:1": true, "tcp://127.9.9.9:1": true, "tcp://[::1]:1": true, "tcp://localhost:1": true, "ipc://a": true,
		"tcp://*:1": false, "tcp://0.0.0.0:1": false, "tcp://10.0.0.1:1": false, "tcp://host:1": false,
	} {
		if e, err := ParseEndpoint(text); err != nil || e.IsLoopback() != want {
			t.Errorf("%s: %t, %v", text, e.IsLoopback(), err)
		}
	}
}

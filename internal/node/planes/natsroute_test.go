package planes

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"penstock/internal/config"
	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

// Addresses of planes, by the settings and the route to the NATS server.
func TestChoosePlace(t *testing.T) {
	for _, c := range []struct {
		route     string // address of this host, "" for none
		want, got planeAddr
		err       string
	}{
		// Not given: loopback unless the server is reached from elsewhere.
		{route: "", got: planeAddr{listen: "127.0.0.1:0"}},
		{route: "127.0.0.1", got: planeAddr{listen: "127.0.0.1:0"}},
		{route: "::1", got: planeAddr{listen: "127.0.0.1:0"}},
		{route: "10.0.0.6", got: planeAddr{listen: "10.0.0.6:0"}},
		{route: "2001:db8::6", got: planeAddr{listen: "[2001:db8::6]:0"}},
		{route: "10.0.0.6", want: planeAddr{"", "host-6"}, got: planeAddr{"10.0.0.6:0", "host-6"}},
		{route: "fe80::1%eth0", err: "--rpc-addr HOST:0"},
		{route: "169.254.7.7", err: "--rpc-addr HOST:0"},
		// All interfaces: the route's address is advertised.
		{route: "10.0.0.6", want: planeAddr{"0.0.0.0:7000", ""}, got: planeAddr{"0.0.0.0:7000", "10.0.0.6"}},
		{route: "10.0.0.6", want: planeAddr{":7000", ""}, got: planeAddr{":7000", "10.0.0.6"}},
		{route: "10.0.0.6", want: planeAddr{"[::]:7000", "host-6:1"}, got: planeAddr{"[::]:7000", "host-6:1"}},
		{route: "fe80::1%eth0", want: planeAddr{":7000", ""}, err: "one link alone"},
		{route: "", want: planeAddr{":7000", ""}, got: planeAddr{":7000", ""}}, // refused by the plane
		// Given: as it is.
		{route: "10.0.0.6", want: planeAddr{"127.0.0.1:7000", ""}, got: planeAddr{"127.0.0.1:7000", ""}},
		{route: "fe80::1%eth0", want: planeAddr{"10.0.0.6:0", ""}, got: planeAddr{"10.0.0.6:0", ""}},
	} {
		var r natsRoute
		if c.route != "" {
			r.ip = netip.MustParseAddr(c.route)
		}
		got, err := r.completeAddr("rpc-addr", c.want)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || err == nil && got != c.got {
			t.Errorf("route %q, settings %+v: %+v, %v; want %+v, %q", c.route, c.want, got, err, c.got, c.err)
		}
	}
}

// The log of the choice is one line, a warning if other hosts get an address which they cannot reach.
func TestChoosePlaceLog(t *testing.T) {
	server, err := natsd.Start(natsd.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, c := range []struct {
		env  []string
		want string // "" is no line
	}{
		{[]string{"NATS_LISTEN=127.0.0.1:0"}, `level=INFO msg="address chosen" setting=rpc-addr addr=127.0.0.1:0`},
		{[]string{"NATS_LISTEN=0.0.0.0:0"}, `level=WARN msg="others are told a loopback address`},
		{[]string{"NATS_LISTEN=0.0.0.0:0", "RPC_ADDR=127.0.0.1:0"}, `level=WARN msg="others are told a loopback address`},
		{[]string{"NATS_LISTEN=0.0.0.0:0", "RPC_ADVERTISE=10.0.0.6"}, `level=INFO msg="address chosen"`},
		{[]string{"NATS_LISTEN=127.0.0.1:0", "RPC_ADDR=127.0.0.1:0"}, ""},
		{[]string{"DISCOVERY=file", "DISCOVERY_DIR=" + t.TempDir()}, "there is no NATS server"},
	} {
		cfg := enginemocktest.LoadSettings(t, config.Worker, c.env...)
		var out bytes.Buffer
		p := &Set{}
		if cfg.NATS.Listen != "" { // at loopback, regardless of the settings
			p.Server = server
		}
		_, err := p.choosePlaneAddr(cfg, "rpc-addr", planeAddr{cfg.RPC.Addr, cfg.RPC.Advertise}, slog.New(slog.NewTextHandler(&out, nil)))
		if err != nil || !strings.Contains(out.String(), c.want) || strings.Count(out.String(), "\n") != min(len(c.want), 1) {
			t.Errorf("%v: %v, log:\n%s", c.env, err, out.String())
		}
	}
}

// A connection to a server at loopback does not give a route out of this host.
func TestRouteOfConnection(t *testing.T) {
	server, err := natsd.Start(natsd.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p := &Set{Conn: natsdtest.Connect(t, server)}
	cfg := enginemocktest.LoadSettings(t, config.Worker, "NATS="+server.URL())
	if r, err := p.findNATSRoute(cfg); err != nil || r.isReachableRemotely() || r.shared || r.ip.String() != "127.0.0.1" {
		t.Errorf("%+v, %v", r, err)
	}
	p.Conn.Close()
	if _, err := p.choosePlaneAddr(cfg, "rpc-addr", planeAddr{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "rpc-addr") {
		t.Errorf("without a connection: %v", err)
	}
}

package node

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"penstock/internal/config"
)

// Where planes serve that are left to choose, by the route to the NATS server.
func TestChoosePlace(t *testing.T) {
	for _, c := range []struct {
		route     string // address of this host, "" for none
		want, got place
		err       string
	}{
		// Not given: loopback unless the server is reached from elsewhere.
		{route: "", got: place{listen: "127.0.0.1:0"}},
		{route: "127.0.0.1", got: place{listen: "127.0.0.1:0"}},
		{route: "::1", got: place{listen: "127.0.0.1:0"}},
		{route: "10.0.0.6", got: place{listen: "10.0.0.6:0"}},
		{route: "2001:db8::6", got: place{listen: "[2001:db8::6]:0"}},
		{route: "10.0.0.6", want: place{"", "host-6"}, got: place{"10.0.0.6:0", "host-6"}},
		{route: "fe80::1%eth0", err: "--rpc-addr HOST:0"},
		{route: "169.254.7.7", err: "--rpc-addr HOST:0"},
		// All interfaces: others are told the route's address.
		{route: "10.0.0.6", want: place{"0.0.0.0:7000", ""}, got: place{"0.0.0.0:7000", "10.0.0.6"}},
		{route: "10.0.0.6", want: place{":7000", ""}, got: place{":7000", "10.0.0.6"}},
		{route: "10.0.0.6", want: place{"[::]:7000", "host-6:1"}, got: place{"[::]:7000", "host-6:1"}},
		{route: "fe80::1%eth0", want: place{":7000", ""}, err: "one link alone"},
		{route: "", want: place{":7000", ""}, got: place{":7000", ""}}, // which the plane refuses
		// Given: as it is.
		{route: "10.0.0.6", want: place{"127.0.0.1:7000", ""}, got: place{"127.0.0.1:7000", ""}},
		{route: "fe80::1%eth0", want: place{"10.0.0.6:0", ""}, got: place{"10.0.0.6:0", ""}},
	} {
		var r natsRoute
		if c.route != "" {
			r.ip = netip.MustParseAddr(c.route)
		}
		got, err := r.choose("rpc-addr", c.want)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || err == nil && got != c.got {
			t.Errorf("route %q, settings %+v: %+v, %v; want %+v, %q", c.route, c.want, got, err, c.got, c.err)
		}
	}
}

// What the log says of the choice: one line, a warning where other hosts are told
// what they cannot reach.
func TestChoosePlaceLog(t *testing.T) {
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
		cfg := settingsOf(t, config.Worker, c.env...)
		var out bytes.Buffer
		p := &planes{}
		err := p.openNATS(t.Context(), cfg, slog.New(slog.DiscardHandler))
		if err == nil {
			_, err = p.choosePlace(cfg, "rpc-addr", place{cfg.RPCAddr, cfg.RPCAdvertise}, slog.New(slog.NewTextHandler(&out, nil)))
		}
		if err != nil || !strings.Contains(out.String(), c.want) || strings.Count(out.String(), "\n") != min(len(c.want), 1) {
			t.Errorf("%v: %v, log:\n%s", c.env, err, out.String())
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

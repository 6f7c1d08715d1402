package endpoint

import (
	"net"
	"testing"

	"penstock/core/fault"
)

func TestAdvertiseAddress(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7000}
	anywhere := &net.TCPAddr{IP: net.IPv4zero, Port: 7000}
	for _, c := range []struct {
		want string
		at   *net.TCPAddr
		told string // "" is an error
	}{
		{"", at, "127.0.0.1:7000"},
		{"", anywhere, ""},
		{"10.0.0.7", anywhere, "10.0.0.7:7000"},
		{"10.0.0.7:0", anywhere, "10.0.0.7:7000"},
		{"worker.example:81", anywhere, "worker.example:81"},
		{"[fe80::1]", at, "[fe80::1]:7000"},
		{"0.0.0.0", at, ""},
		{"a b", at, ""},
		{"host:99999", at, ""},
	} {
		told, err := AdvertiseAddress("rpc", c.want, c.at)
		if told != c.told || (err != nil) != (c.told == "") || err != nil && fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%q at %v: %q, %v", c.want, c.at, told, err)
		}
	}
	if ValidateListen("rpc", "127.0.0.1:0", "") != nil || ValidateListen("rpc", "nothing", "") == nil {
		t.Error("a listen address is host:port")
	}
}

func TestTokensMatch(t *testing.T) {
	for _, c := range []struct {
		theirs, ours string
		want         bool
	}{{"", "", true}, {"x", "", true}, {"x", "x", true}, {"", "x", false}, {"xy", "x", false}} {
		if TokensMatch(c.theirs, c.ours) != c.want {
			t.Errorf("%+v", c)
		}
	}
}

package node

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/config"
	"penstock/internal/edge/keys"
	"penstock/internal/reload"
)

// openTestEndpoint returns the endpoint of the settings, its directory, and the log.
func openTestEndpoint(t *testing.T, settings ...string) (httpEndpoint, string, error) {
	t.Helper()
	cfg, err := config.Load("", append([]string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0"}, settings...), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log, err := newLogger(cfg, &out)
	if err != nil {
		t.Fatal(err)
	}
	d, err := openHTTPEndpoint(cfg, log)
	if d.listener != nil {
		d.listener.Close()
	}
	return d, out.String(), err
}

func keyFile(t *testing.T, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte("keys: [{name: a, key: sk-admin-0123456789, admin: true}, {name: u, key: sk-user-0123456789}]"), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // regardless of the umask
		t.Fatal(err)
	}
	return path
}

// TestDoorWarns: the log names exactly the missing protections, and nothing if no other machine can connect.
func TestDoorWarns(t *testing.T) {
	for _, tt := range []struct {
		d         httpEndpoint
		addr      string
		has, lack []string
	}{
		{httpEndpoint{}, "127.0.0.1:8000", nil, []string{"level"}},
		{httpEndpoint{}, "192.0.2.1:8000", []string{"--tls-cert", " and ", "--api-key-file"}, nil},
		{httpEndpoint{keys: new(keys.Keyring)}, "0.0.0.0:8000", []string{"--tls-cert"}, []string{"--api-key-file"}},
		{httpEndpoint{cert: new(reload.Certificate)}, "[::]:8000", []string{"--api-key-file"}, []string{"--tls-cert"}},
		{httpEndpoint{keys: new(keys.Keyring), cert: new(reload.Certificate)}, "0.0.0.0:8000", nil, []string{"level"}},
	} {
		var out bytes.Buffer
		tt.d.warnIfExposed(tt.addr, slog.New(slog.NewTextHandler(&out, nil)))
		for _, s := range tt.has {
			if !strings.Contains(out.String(), s) {
				t.Errorf("%s: the log lacks %s: %s", tt.addr, s, &out)
			}
		}
		for _, s := range tt.lack {
			if strings.Contains(out.String(), s) {
				t.Errorf("%s: the log has %s: %s", tt.addr, s, &out)
			}
		}
	}
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		_, text, err := openTestEndpoint(t, "PENSTOCK_API_KEY_FILE="+keyFile(t, mode))
		if err != nil || strings.Contains(text, "chmod 600") != warned || strings.Contains(text, "sk-") {
			t.Errorf("a key file of mode %o: %v, %s", mode, err, text)
		}
	}
}

func TestDoorRefuses(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	if _, _, err := openTestEndpoint(t, "PENSTOCK_API_KEY_FILE="+none); err == nil || !strings.Contains(err.Error(), "api-key-file") {
		t.Errorf("a key file that is not there: %v", err)
	}
	if _, _, err := openTestEndpoint(t, "PENSTOCK_TLS_CERT="+none, "PENSTOCK_TLS_KEY="+none); err == nil || !strings.Contains(err.Error(), "tls-cert") {
		t.Errorf("a certificate that is not there: %v", err)
	}
}

// TestAdmins: the HTTP API of a process without a frontend requires an administrator.
func TestAdmins(t *testing.T) {
	d, _, err := openTestEndpoint(t, "PENSTOCK_API_KEY_FILE="+keyFile(t, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	shown := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("shown")) })
	for _, tt := range []struct {
		d      httpEndpoint
		access string
		key    string
		status int
	}{
		{d, config.AccessAdmin, "", 401},
		{d, config.AccessAdmin, "sk-user-0123456789", 403},
		{d, config.AccessAdmin, "sk-admin-0123456789", 200},
		{d, config.AccessOpen, "", 200},
		{httpEndpoint{}, config.AccessAdmin, "", 200},
	} {
		r, w := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
		r.Header.Set("x-api-key", tt.key)
		tt.d.requireAdmin(shown, tt.access).ServeHTTP(w, r)
		if w.Code != tt.status || (w.Header().Get("WWW-Authenticate") != "") != (tt.status == 401) {
			t.Errorf("access %s with the key %q: %d %v", tt.access, tt.key, w.Code, w.Header())
		}
	}
}

// TestListenElsewhere: the error of an address that no interface has says so, with a remedy.
func TestListenElsewhere(t *testing.T) {
	ln, err := listenHTTP("192.0.2.1:0") // of TEST-NET-1: no machine has it
	if err == nil {
		ln.Close()
		t.Skip("this machine takes addresses that it does not have")
	}
	if !strings.Contains(err.Error(), "is not an address of this machine") || !strings.Contains(err.Error(), "--http-addr") {
		t.Errorf("error %q", err)
	}
}

// TestOtherName: a client gets a host name which the certificate covers, unless it covers the address.
func TestOtherName(t *testing.T) {
	for _, tt := range []struct {
		leaf       x509.Certificate
		host, want string
	}{
		{x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, "127.0.0.1", ""},
		{x509.Certificate{DNSNames: []string{"localhost"}}, "localhost", ""},
		{x509.Certificate{DNSNames: []string{"llm.example.com"}}, "127.0.0.1", "llm.example.com"},
		{x509.Certificate{DNSNames: []string{"*.example.com"}}, "127.0.0.1", "penstock.example.com"},
		{x509.Certificate{IPAddresses: []net.IP{net.IPv4(10, 0, 0, 5)}}, "localhost", "10.0.0.5"},
	} {
		got := alternateName(&tt.leaf, tt.host)
		if got != tt.want || got != "" && tt.leaf.VerifyHostname(got) != nil {
			t.Errorf("%v at %s: %q, want %q", tt.leaf.DNSNames, tt.host, got, tt.want)
		}
	}
	if got := (Access{Name: "llm.example.com"}).URLOf("https://127.0.0.1:8443"); got != "https://llm.example.com:8443" {
		t.Errorf("the URL is %s", got)
	}
}

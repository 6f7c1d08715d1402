package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRefusedCertificate: if a command refuses a server's certificate, it says whether the authority or the
// host name is the reason, and the remedy.
func TestRefusedCertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	elsewhere := "https://localhost:" + port // the certificate is for 127.0.0.1
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"workers", "--server"},
		{"chat", "text", "--server"},
		{"doctor", "--http-addr", "127.0.0.1:0", "--server"},
		{"bench", "--requests", "1", "--url"},
		{"bench", "--requests", "1", "--model", "m", "--url"},
	} {
		flag := command[len(command)-1]
		for _, tt := range []struct {
			url, remedy string
			more        []string
		}{
			{server.URL, "name the certificates that sign it with --ca", nil},
			{elsewhere, "name a host that it is for with " + flag, []string{"--ca", ca}},
		} {
			var out, errs bytes.Buffer
			code := runCommandLine(append(append(slices.Clone(command), tt.url), tt.more...), &out, &errs)
			said := out.String() + errs.String()
			if code != exitFailed || !strings.Contains(said, "the certificate of "+tt.url) || !strings.Contains(said, tt.remedy) {
				t.Errorf("%s %s: exit code %d, %s; want %q", command, tt.url, code, said, tt.remedy)
			}
		}
	}
}

// TestWrongServer: if the target is another HTTP server, or the scheme is wrong, the command says so and what
// to use instead.
func TestWrongServer(t *testing.T) {
	other := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "nginx/1.22")
		if r.URL.Path == "/health" {
			_, _ = io.WriteString(w, "<html>fine</html>")
			return
		}
		http.NotFound(w, r)
	})
	plain := httptest.NewServer(other)
	defer plain.Close()
	secure := httptest.NewUnstartedServer(other)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // plain HTTP comes to it
	secure.StartTLS()
	defer secure.Close()
	commands := [][]string{
		{"workers", "--server"},
		{"route", "text", "--server"},
		{"events", "--server"},
		{"config", "show", "--server"},
		{"doctor", "--http-addr", "127.0.0.1:0", "--server"},
		{"bench", "--requests", "1", "--url"},
		{"bench", "--requests", "1", "--model", "m", "--url"},
	}
	for _, tt := range []struct{ name, url, what, remedy string }{
		{"another server", plain.URL, " is not a Penstock, but another HTTP server (nginx/1.22)", "name a Penstock with "},
		{"http at a TLS port", "http" + strings.TrimPrefix(secure.URL, "https"), " speaks TLS", "name " + secure.URL + " with "},
		{"https at a plain port", "https" + strings.TrimPrefix(plain.URL, "http"), " does not speak TLS", "name " + plain.URL + " with "},
	} {
		for _, command := range commands {
			if tt.name == "another server" && len(command) == 6 {
				continue // with --model, bench asks any server
			}
			var out, errs bytes.Buffer
			code := runCommandLine(append(append([]string{}, command...), tt.url), &out, &errs)
			said := out.String() + errs.String()
			if code != exitFailed || !strings.Contains(said, tt.url+tt.what) || !strings.Contains(said, tt.remedy+command[len(command)-1]) {
				t.Errorf("%s, %s: exit code %d, %s; want %q and %q", tt.name, command, code, said, tt.url+tt.what, tt.remedy)
			}
		}
	}
}

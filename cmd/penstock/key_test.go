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
	"strings"
	"testing"
)

// TestKeysOfCommands: commands send their key only to the given server, over TLS which they trust.
func TestKeysOfCommands(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a key went elsewhere: %v", r.Header)
	}))
	defer elsewhere.Close()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") == "Bearer sk-redirect-012345":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		case r.Header.Get("Authorization") != "Bearer sk-admin-0123456789":
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":{"message":"no good key"}}`))
		default:
			_, _ = w.Write([]byte(`{"rows":[]}`))
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // the server logs refused handshakes
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	file := func(name, contents string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := file("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	keyFile := file("keys.yaml", "keys: [{name: u, key: sk-user-0123456789}, {name: a, key: sk-admin-0123456789, admin: true}]")
	hashes := file("hashes.yaml", "keys: [{name: u, sha256: "+strings.Repeat("0", 64)+"}]")
	for _, tt := range []struct {
		name, env string
		args      []string
		code      int
		err       string
	}{
		{"no key", "", []string{"--ca", ca}, exitFailed, "no good key"},
		{"a variable", "sk-admin-0123456789", []string{"--ca", ca}, exitDone, ""},
		{"a file", "sk-user-0123456789", []string{"--ca", ca, "--api-key-file", keyFile}, exitDone, ""},
		{"a file of hashes", "", []string{"--ca", ca, "--api-key-file", hashes}, exitUsage, "hashes of keys only"},
		{"a file that is none", "", []string{"--ca", ca, "--api-key-file", filepath.Join(dir, "none")}, exitUsage, "--api-key-file"},
		{"a strange certificate", "sk-admin-0123456789", nil, exitFailed, "with --ca"},
		{"authorities that are none", "", []string{"--ca", keyFile}, exitUsage, "--ca"},
		{"a redirect", "sk-redirect-012345", []string{"--ca", ca}, exitFailed, "307"},
	} {
		for _, command := range [][]string{{"workers"}, {"config", "show"}} {
			t.Setenv("PENSTOCK_API_KEY", tt.env)
			var out, errs bytes.Buffer
			args := append(append(append([]string{}, command...), "--server", server.URL), tt.args...)
			if code := runCommandLine(args, &out, &errs); code != tt.code || !strings.Contains(errs.String(), tt.err) {
				t.Errorf("%s, %s: exit code %d, %q, want %d, %q", command, tt.name, code, errs.String(), tt.code, tt.err)
			}
			if strings.Contains(errs.String(), "sk-") {
				t.Errorf("%s, %s: an error has the key: %s", command, tt.name, errs.String())
			}
		}
	}
}

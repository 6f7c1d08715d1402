package doctor

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/enginemock/enginemocktest"

	"penstock/internal/config"
	"penstock/internal/fixturetest"
)

// writeTempFile writes a file into a directory of the test.
func writeTempFile(t *testing.T, name string, contents []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, contents, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestExamineKeys: the key of the settings is sent to the process of the settings and to no other; without a
// key a server does not answer.
func TestExamineKeys(t *testing.T) {
	const admin = "0123456789abcdef0123456789abcdef"
	var shown []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		if auth != "" {
			shown = append(shown, auth)
		}
		switch {
		case r.URL.Path == "/live":
			fmt.Fprint(w, `{"status":"live"}`)
		case r.URL.Path == "/health":
			fmt.Fprint(w, `{"status":"healthy"}`)
		case auth != "Bearer "+admin:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			fmt.Fprint(w, `{"rows":[{"worker_id":1,"state":"ready"}]}`)
		}
	}))
	defer server.Close()
	addr := strings.TrimPrefix(server.URL, "http://")
	file := writeTempFile(t, "keys.yaml", []byte("keys:\n  - {name: a, key: "+admin+", admin: true}\n"))
	own := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR="+addr, "API_KEY_FILE="+file)

	found := Examine(t.Context(), Examination{Config: own})
	checkFinding(t, found, "workers", CheckOK, "1 of 1")
	other := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "API_KEY_FILE="+file)
	shown = nil
	found = Examine(t.Context(), Examination{Config: other, Server: server.URL})
	checkFinding(t, found, "workers", CheckWarn, "401 Unauthorized")
	if len(shown) != 0 {
		t.Errorf("a server that was named got %q", shown)
	}
	found = Examine(t.Context(), Examination{Config: other, Server: server.URL, Key: admin})
	checkFinding(t, found, "workers", CheckOK, "1 of 1")
	bad := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "API_KEY_FILE="+writeTempFile(t, "keys.yaml", []byte("keys: 3")))
	checkFinding(t, Examine(t.Context(), Examination{Config: bad}), "config", CheckFail, "api-key-file")
}

// TestExamineCertificates: an expired certificate, or one that expires soon, is reported.
func TestExamineCertificates(t *testing.T) {
	for _, c := range []struct {
		from, until time.Duration
		status      string
	}{
		{-time.Hour, 365 * 24 * time.Hour, CheckOK},
		{-time.Hour, 24 * time.Hour, CheckWarn},
		{-2 * time.Hour, -time.Hour, CheckFail},
		{time.Hour, 365 * 24 * time.Hour, CheckFail},
	} {
		now := time.Now()
		p := fixturetest.NewPair(t, fixturetest.CertOptions{From: now.Add(c.from), Until: now.Add(c.until)})
		cert, key := writeTempFile(t, "cert.pem", p.Cert), writeTempFile(t, "key.pem", p.Key)
		cfg := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "TLS_CERT="+cert, "TLS_KEY="+key)
		found := Examine(t.Context(), Examination{Config: cfg})
		checkFinding(t, found, "config", CheckOK, "valid")
		checkFinding(t, found, "tls-cert", c.status, "holds")
	}
	cfg := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "TLS_CERT=/nowhere", "TLS_KEY=/nowhere")
	checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "config", CheckFail, "tls-cert /nowhere")
}

// TestExamineOwnTLS: if the certificate of the process at the address of the settings is not trusted here,
// the doctor does not check the process, and says so with a remedy.
func TestExamineOwnTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	p := fixturetest.NewPair(t, fixturetest.CertOptions{})
	addr := strings.TrimPrefix(server.URL, "https://")
	cfg := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR="+addr, "TLS_CERT="+writeTempFile(t, "cert.pem", p.Cert), "TLS_KEY="+writeTempFile(t, "key.pem", p.Key))
	checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "server", CheckWarn, "is not trusted here")
}

// TestRemedies: the remedy for a worker without requests names it and where to look.
func TestRemedies(t *testing.T) {
	for state, want := range map[string]string{
		"quarantined": "process 7 on gpu1", "not_ready": "engine", "unfit": "--served-model-name", "error": "gpu1",
	} {
		w := examinedWorker{Host: "gpu1", PID: 7, Addr: "tcp://10.0.0.6:7000", State: state}
		if got := remedyOf(&w); !strings.Contains(got, want) {
			t.Errorf("%s: %q; want %q", state, got, want)
		}
	}
}

package natsd

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/fixturetest"
)

// start starts a server that ends with the test.
func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// connect connects within the process until the end of the test.
func connect(t *testing.T, s *Server) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := s.Connect(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// connectTo connects to url. An attempt may take as long as the test.
func connectTo(t *testing.T, url string, opts ...nats.Option) (*nats.Conn, error) {
	return Connect(url, t.Name(), nil, append(opts, nats.Timeout(fixturetest.TimeLeft(t)))...)
}

func TestInProcess(t *testing.T) {
	s := start(t, Config{})
	if s.URL() != "" {
		t.Errorf("a server that does not listen has URL %q", s.URL())
	}
	_, js := connect(t, s)
	st, err := js.CreateStream(fixturetest.PatientContext(t), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	if st.CachedInfo().Config.Storage != jetstream.FileStorage {
		t.Error("not a file stream")
	}
	if _, err := js.Publish(fixturetest.PatientContext(t), "s", []byte("x")); err != nil {
		t.Fatal(err)
	}
}

func TestTemporaryDirectoryIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s := start(t, Config{})
	list := func() int {
		e, err := os.ReadDir(os.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	if n := list(); n != 1 {
		t.Errorf("%d directories while it runs, want 1", n)
	}
	for range 2 { // idempotent
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := list(); n != 0 {
		t.Errorf("%d directories after Close, want none", n)
	}
}

func TestDataSurvives(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := start(t, Config{DataDir: dir})
	_, js := connect(t, s)
	if _, err := js.CreateStream(fixturetest.PatientContext(t), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(fixturetest.PatientContext(t), "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, js = connect(t, start(t, Config{DataDir: dir}))
	st, err := js.Stream(fixturetest.PatientContext(t), "S")
	if err != nil {
		t.Fatal(err)
	}
	m, err := st.GetMsg(fixturetest.PatientContext(t), 1)
	if err != nil || string(m.Data) != "kept" {
		t.Errorf("message %v, error %v", m, err)
	}
}

func TestListen(t *testing.T) {
	s := start(t, Config{Listen: "127.0.0.1:0"})
	nc, err := connectTo(t, s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.FlushWithContext(fixturetest.PatientContext(t)); err != nil {
		t.Error(err)
	}
}

// TestToken: with a token others must show it; this process need not.
func TestToken(t *testing.T) {
	s := start(t, Config{Listen: "127.0.0.1:0", Token: "a-token"})
	for name, opts := range map[string][]nats.Option{"none": nil, "another": {nats.Token("b-token")}} {
		nc, err := connectTo(t, s.URL(), opts...)
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: error %v, want %v", name, err, nats.ErrAuthorization)
		}
		if err == nil {
			nc.Close()
		}
	}
	nc, err := connectTo(t, s.URL(), nats.Token("a-token"))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	inside, err := s.Connect("inside")
	if err != nil {
		t.Fatal(err)
	}
	inside.Close()
}

// TestTLS: with TLS others must speak it, and with authorities show a certificate;
// this process need not.
func TestTLS(t *testing.T) {
	cert := fixturetest.NewPair(t, fixturetest.CertOptions{})
	own, pool := cert.TLS, cert.Pool
	s := start(t, Config{Listen: "127.0.0.1:0", TLS: &tls.Config{
		Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}})
	if !strings.HasPrefix(s.URL(), "tls://") {
		t.Errorf("the URL is %s", s.URL())
	}
	plain := strings.Replace(s.URL(), "tls://", "nats://", 1)
	for name, opts := range map[string][]nats.Option{
		"no trust":       nil,
		"no certificate": {nats.Secure(&tls.Config{RootCAs: pool})},
	} {
		if nc, err := connectTo(t, plain, opts...); err == nil {
			t.Errorf("%s: connected", name)
			nc.Close()
		}
	}
	nc, err := connectTo(t, s.URL(), nats.Secure(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{own}}))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	inside, err := s.Connect("inside")
	if err != nil {
		t.Fatal(err)
	}
	inside.Close()
}

// TestLock: a directory belongs to one process, with or without a server.
func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	lock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("a second lock: %v", err)
	}
	if s, err := Start(Config{DataDir: dir}); err == nil {
		s.Close()
		t.Error("a server started in a locked directory")
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = Lock(dir); err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	s, err := Start(Config{Listen: addr})
	if err == nil {
		s.Close()
		t.Fatal("started on a port in use")
	}
	if !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "choose another") {
		t.Errorf("the error should name %s and say what to do: %v", addr, err)
	}
}

func TestDataDirectoryUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		s, err := Start(Config{DataDir: dir})
		if err == nil {
			s.Close()
			t.Fatalf("started in %s", dir)
		}
		if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "choose another") {
			t.Errorf("the error should name %s and say what to do: %v", dir, err)
		}
	}
}

func TestOneServerPerDirectory(t *testing.T) {
	dir := t.TempDir()
	start(t, Config{DataDir: dir})
	s, err := Start(Config{DataDir: dir})
	if err == nil {
		s.Close()
		t.Fatal("two servers in one directory")
	}
	want := fmt.Sprintf("data directory %s: in use by process %d", dir, os.Getpid())
	if !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q in it", err, want)
	}
}

// A process that was killed leaves no lock behind. The test runs itself.
func TestLockEndsWithProcess(t *testing.T) {
	const env = "NATSD_TEST_LOCK"
	if dir := os.Getenv(env); dir != "" {
		if _, err := lockDir(dir); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("locked")
		select {} // until killed
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestLockEndsWithProcess$")
	cmd.Env = append(os.Environ(), env+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 6)
	if _, err := out.Read(line); err != nil || string(line) != "locked" {
		t.Errorf("the other process says %q, %v", line, err)
	}
	_, err = lockDir(dir)
	if want := fmt.Sprintf("in use by process %d", cmd.Process.Pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("while it lives: error %v, want %q", err, want)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed, as asked
	f, err := lockDir(dir)
	if err != nil {
		t.Fatalf("after it died: %v", err)
	}
	f.Close()
}

func TestConfigReportsEverything(t *testing.T) {
	cfg := Config{Listen: "nowhere", MaxStore: -1}
	err := cfg.Validate()
	if err == nil || !strings.Contains(err.Error(), "nowhere") || !strings.Contains(err.Error(), "-1") {
		t.Errorf("error %v, want both problems", err)
	}
	if _, err := Start(cfg); err == nil {
		t.Error("started with a bad configuration")
	}
	if err := (&Config{Listen: "127.0.0.1:99999"}).Validate(); err == nil {
		t.Error("port 99999 accepted")
	}
}

func TestConnectFailureHidesPasswords(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, err = Connect("nats://user:hunter2@"+addr+",nats://token3@"+addr, "test", nil)
	if err == nil || !strings.Contains(err.Error(), addr) {
		t.Fatalf("error %v, want one that names %s", err, addr)
	}
	if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "token3") {
		t.Errorf("a secret in the error: %v", err)
	}
}

func TestServerLogIsQuiet(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // in the usual one others may have left a directory to remove
	var out bytes.Buffer
	s := start(t, Config{Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))})
	nc, _ := connect(t, s)
	nc.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 0 {
		t.Errorf("an ordinary life is logged:\n%s", out.String())
	}
}

// Closing must not wait for the clients that are still there.
func TestCloseWithClients(t *testing.T) {
	s := start(t, Config{Listen: "127.0.0.1:0"})
	nc, err := connectTo(t, s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	lost := nc.StatusChanged(nats.RECONNECTING)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lost:
	case <-time.After(5 * time.Minute):
		t.Error("the client still believes in the server")
	}
	nc.RemoveStatusListener(lost)
}

// Package natsdtest provides NATS servers for tests which cannot be embedded, and connections to embedded ones.
package natsdtest

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
)

// Connect connects to s, by its address if it has one. An attempt may take as long as the test. The connection ends
// with the test.
func Connect(t *testing.T, s *natsd.Server) *nats.Conn {
	t.Helper()
	var nc *nats.Conn
	var err error
	if s.URL() == "" {
		nc, err = s.Connect(t.Name())
	} else {
		nc, err = natsd.Connect(s.URL(), t.Name(), nil, nats.Timeout(fixturetest.TimeLeft(t)))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// ServeVersion starts a server which greets clients with the given version and answers their pings,
// and does nothing else. It ends with the test.
func ServeVersion(t testing.TB, version string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			conns.Go(func() { serveGreeting(c, version) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait() // clients close their connections before
	})
	return "nats://" + l.Addr().String()
}

// serveGreeting serves one connection until its client closes it.
func serveGreeting(c net.Conn, version string) {
	defer c.Close()
	fmt.Fprintf(c, `INFO {"server_id":"OLD","server_name":"OLD","version":%q,"proto":1,"go":"go1.19","host":"127.0.0.1","port":4222,"headers":true,"max_payload":1048576,"jetstream":true}`+"\r\n", version)
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "PING") {
			fmt.Fprint(c, "PONG\r\n")
		}
	}
}

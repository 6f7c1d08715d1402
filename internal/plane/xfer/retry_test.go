package xfer_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/xfer"
)

// failingPlane fails to open transfers, or, with opens, opens transfers whose writes fail.
type failingPlane struct {
	xfer.Plane
	err   error
	opens bool
	began []time.Time
}

func (p *failingPlane) Open(context.Context, xfer.Descriptor) (xfer.TransferWriter, error) {
	p.began = append(p.began, time.Now())
	if p.opens {
		return failingWriter{err: p.err}, nil
	}
	return nil, p.err
}

type failingWriter struct {
	xfer.TransferWriter
	err error
}

func (w failingWriter) Write([]byte) error { return w.err }

// TestNoRetryOnceOpen: a transfer which was opened is not repeated, since the owner may have bytes of it.
func TestNoRetryOnceOpen(t *testing.T) {
	f := &failingPlane{err: fault.New(fault.Unavailable, "the connection is lost"), opens: true}
	err := xfer.Write(t.Context(), &xfer.RetryPlane{Plane: f, Until: time.Now().Add(time.Minute)}, xfer.Descriptor{}, nil, []byte("bytes"))
	if !errors.Is(err, f.err) || len(f.began) != 1 {
		t.Errorf("%d attempts, and then %v", len(f.began), err)
	}
}

// TestRetryEnds: attempts begin within the time which they have, and only failures are repeated which another attempt
// can mend.
func TestRetryEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		repeated bool
	}{
		"unreachable":   {fault.New(fault.Unavailable, "refused"), true},
		"full":          {fault.New(fault.Overloaded, "no room"), true},
		"unknown":       {fault.New(fault.NotFound, "the transfer is over"), false},
		"another life":  {fault.New(fault.Conflict, "stale"), false},
		"a wrong token": {fault.New(fault.Invalid, "token"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &failingPlane{err: tt.err}
				began := time.Now()
				_, err := (&xfer.RetryPlane{Plane: f, Until: began.Add(10 * time.Second)}).Open(t.Context(), xfer.Descriptor{})
				took := time.Since(began)
				if !errors.Is(err, tt.err) {
					t.Errorf("%v", err)
				}
				if !tt.repeated && len(f.began) == 1 && took == 0 {
					return
				}
				// The longest wait is 1 s, and half of it more.
				if !tt.repeated || len(f.began) < 7 || took > 10*time.Second || took < 8*time.Second {
					t.Errorf("%d attempts in %v", len(f.began), took)
				}
			})
		})
	}
}

// TestRetryIsCancelled: the end of the context ends the wait between two attempts.
func TestRetryIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failingPlane{err: fault.New(fault.Unavailable, "refused")}
		ctx, cancel := context.WithCancel(t.Context())
		p := &xfer.RetryPlane{Plane: f, Until: time.Now().Add(time.Minute), OnAttempt: func(error) {
			if len(f.began) == 3 {
				time.AfterFunc(time.Millisecond, cancel) // virtual: in the wait which follows
			}
		}}
		if _, err := p.Open(ctx, xfer.Descriptor{}); !errors.Is(err, context.Canceled) || len(f.began) != 3 {
			t.Errorf("%d attempts, and then %v", len(f.began), err)
		}
	})
}

// answer listens, answers what comes first on each connection, and then says nothing until the end of the test. It returns
// its address.
func answer(t *testing.T, with string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte(with))
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l.Addr().String()
}

// TestNoRetryOfLastingFailures: what another attempt does not mend is tried once, unless there is another way to the owner.
func TestNoRetryOfLastingFailures(t *testing.T) {
	pair, other := fixturetest.NewPair(t, fixturetest.CertOptions{}), fixturetest.NewPair(t, fixturetest.CertOptions{})
	secure := newTCP(t, xfer.TCPConfig{ServerTLS: &tls.Config{Certificates: []tls.Certificate{pair.TLS}}})
	run(t, secure)
	closed := newTCP(t, xfer.TCPConfig{})
	closed.Close()
	plain, trusting := newTCP(t, xfer.TCPConfig{}), newTCP(t, xfer.TCPConfig{ClientTLS: &tls.Config{RootCAs: other.Pool}})
	mem, err := xfer.NewMemPlane(xfer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	fastest, err := xfer.NewFastest(mem, nil, nil, newTCP(t, xfer.TCPConfig{}))
	if err != nil {
		t.Fatal(err)
	}
	closer(t, fastest)
	noPeer := answer(t, "HTTP/1.1 400 Bad Request\r\n\r\n")
	for name, tt := range map[string]struct {
		plane    xfer.Plane
		at       []xfer.OwnerAddress
		repeated bool
	}{
		"no way":                 {plain, []xfer.OwnerAddress{{Transport: xfer.Shm, Address: "host/name"}}, false},
		"closed":                 {closed, []xfer.OwnerAddress{{Transport: xfer.TCP, Address: noPeer}}, false},
		"another certificate":    {trusting, secure.Addresses(), false},
		"no peer":                {plain, []xfer.OwnerAddress{{Transport: xfer.TCP, Address: noPeer}}, false},
		"no peer with TLS":       {trusting, []xfer.OwnerAddress{{Transport: xfer.TCP, Address: noPeer}}, false},
		"a peer with TLS":        {plain, []xfer.OwnerAddress{{Transport: xfer.TCP, Address: answer(t, "\x15\x03\x01\x00\x02\x02\x46")}}, false},
		"another process's":      {mem, []xfer.OwnerAddress{{Transport: xfer.Mem, Address: "other"}}, false},
		"neither of two ways":    {fastest, []xfer.OwnerAddress{{Transport: xfer.Mem, Address: "other"}, {Transport: xfer.TCP, Address: noPeer}}, false},
		"one way of two perhaps": {fastest, []xfer.OwnerAddress{{Transport: xfer.Mem, Address: "other"}, {Transport: xfer.TCP, Address: "127.0.0.1:0"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for way, open := range map[string]func(context.Context, xfer.Plane) error{
				"large": func(ctx context.Context, p xfer.Plane) error {
					_, err := p.Open(ctx, xfer.Descriptor{Endpoints: tt.at, Size: 1})
					return err
				},
				"small": func(ctx context.Context, p xfer.Plane) error {
					return xfer.Write(ctx, p, xfer.Descriptor{Endpoints: tt.at, Size: 1}, nil, []byte{1})
				},
			} {
				ctx, cancel := context.WithCancel(t.Context())
				attempts := 0
				err := open(ctx, &xfer.RetryPlane{Plane: tt.plane, Until: time.Now().Add(time.Minute), OnAttempt: func(error) {
					if attempts++; attempts == 2 {
						cancel()
					}
				}})
				cancel()
				if err == nil || attempts != 1 != tt.repeated {
					t.Errorf("%s: %d attempts, and then %v", way, attempts, err)
				}
			}
		})
	}
}

// TestNoRetryOfAlert: an owner which does not accept the certificate of a writer says so by an alert of TLS.
func TestNoRetryOfAlert(t *testing.T) {
	pair := fixturetest.NewPair(t, fixturetest.CertOptions{})
	near, far := net.Pipe()
	defer near.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer far.Close()
		_ = tls.Server(far, &tls.Config{Certificates: []tls.Certificate{pair.TLS}, ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}).Handshake()
	}()
	err := tls.Client(near, &tls.Config{InsecureSkipVerify: true}).Handshake()
	<-ended
	if refused := fault.New(fault.Unavailable, "open: %w", err); err == nil || xfer.IsRepeatable(refused) {
		t.Errorf("%v is repeated", refused)
	}
}

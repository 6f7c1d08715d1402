package xfer_test

import (
	"cmp"
	"crypto/tls"
	"testing"

	"penstock/internal/fixturetest"
	"penstock/internal/plane/xfer"
	"penstock/internal/plane/xfer/xfertest"
)

// closer closes a plane at the end of a test.
func closer(t *testing.T, p interface{ Close() error }) {
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// withPatience returns cfg with the limits of patient where it has none.
func withPatience(cfg xfer.Config) xfer.Config {
	cfg.Handshake, cfg.Silence = cmp.Or(cfg.Handshake, patient.Handshake), cmp.Or(cfg.Silence, patient.Silence)
	return cfg
}

func newTCP(t *testing.T, cfg xfer.TCPConfig) *xfer.TCPPlane {
	t.Helper()
	cfg.Config = withPatience(cfg.Config)
	p, err := xfer.NewTCPPlane(cfg)
	if err != nil {
		t.Fatal(err)
	}
	closer(t, p)
	return p
}

func newShm(t *testing.T, cfg xfer.Config) *xfer.ShmPlane {
	t.Helper()
	p, err := xfer.NewShmPlane(withPatience(cfg))
	if err != nil {
		t.Fatal(err)
	}
	closer(t, p)
	return p
}

func newMem(t *testing.T, cfg xfer.Config) *xfer.MemPlane {
	t.Helper()
	p, err := xfer.NewMemPlane(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// transports are the transports of this build between processes.
func transports() []string {
	if hasUCX {
		return []string{"shm", "tcp", "ucx"}
	}
	return []string{"shm", "tcp"}
}

// newPlane returns a plane of a transport.
func newPlane(t *testing.T, transport string, cfg xfer.Config) xfer.Plane {
	t.Helper()
	switch transport {
	case "mem":
		return newMem(t, cfg)
	case "shm":
		return newShm(t, cfg)
	case "ucx":
		return newUCX(t, xfer.TCPConfig{Config: cfg})
	}
	return newTCP(t, xfer.TCPConfig{Config: cfg})
}

func newUCX(t *testing.T, cfg xfer.TCPConfig) *xfer.UCXPlane {
	t.Helper()
	cfg.Config = withPatience(cfg.Config)
	p, err := xfer.NewUCXPlane(cfg)
	if err != nil {
		t.Fatal(err)
	}
	closer(t, p)
	return p
}

func TestMem(t *testing.T) {
	xfertest.Run(t, func(t *testing.T, cfg xfer.Config) xfertest.Ends {
		p := newMem(t, cfg)
		return xfertest.Ends{Owner: p, Writer: p}
	})
}

func TestShm(t *testing.T) {
	xfertest.Run(t, func(t *testing.T, cfg xfer.Config) xfertest.Ends {
		return xfertest.Ends{Owner: newShm(t, cfg), Writer: newShm(t, cfg)}
	})
}

func TestTCP(t *testing.T) {
	xfertest.Run(t, func(t *testing.T, cfg xfer.Config) xfertest.Ends {
		return xfertest.Ends{Owner: newTCP(t, xfer.TCPConfig{Config: cfg}), Writer: newTCP(t, xfer.TCPConfig{Config: cfg})}
	})
}

func TestTLS(t *testing.T) {
	pair := fixturetest.NewPair(t, fixturetest.CertOptions{Name: "owner"})
	xfertest.Run(t, func(t *testing.T, cfg xfer.Config) xfertest.Ends {
		cfg.Token = "secret"
		return xfertest.Ends{
			Owner:  newTCP(t, xfer.TCPConfig{Config: cfg, ServerTLS: &tls.Config{Certificates: []tls.Certificate{pair.TLS}}}),
			Writer: newTCP(t, xfer.TCPConfig{Config: cfg, ClientTLS: &tls.Config{RootCAs: pair.Pool}}),
		}
	})
}

// newFastest joins all planes of a process.
func newFastest(t *testing.T, cfg xfer.Config) *xfer.Fastest {
	t.Helper()
	var ucx *xfer.UCXPlane
	if hasUCX {
		ucx = newUCX(t, xfer.TCPConfig{Config: cfg})
	}
	p, err := xfer.NewFastest(newMem(t, cfg), newShm(t, cfg), ucx, newTCP(t, xfer.TCPConfig{Config: cfg}))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFastest(t *testing.T) {
	xfertest.Run(t, func(t *testing.T, cfg xfer.Config) xfertest.Ends {
		return xfertest.Ends{Owner: newFastest(t, cfg), Writer: newFastest(t, cfg)}
	})
}

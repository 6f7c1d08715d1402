package rpc_test

import (
	"testing"

	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
)

// newTCP returns a plane that the end of the test closes.
func newTCP(t *testing.T, cfg rpc.TCPConfig) *rpc.TCP {
	t.Helper()
	p, err := rpc.NewTCP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestTCP(t *testing.T) {
	rpctest.Run(t, func(t *testing.T) rpc.Plane { return newTCP(t, rpc.TCPConfig{}) })
}

// Package rpctest is the conformance suite of request planes. It relies only on the contract: no
// fake time, no knowledge of the transport.
package rpctest

import (
	"testing"

	"penstock/internal/plane/rpc"
)

// Run tests the plane that open returns. Each part opens its own plane; open registers its cleanup
// with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) rpc.Plane) {
	parts := []struct {
		name string
		test func(*testing.T, rpc.Plane)
	}{
		{"order", testOrder},
		{"empty frames", testEmptyFrames},
		{"no frames", testNoFrames},
		{"large body", testLargeBody},
		{"limits", testLimits},
		{"frame is copied", testFrameIsCopied},
		{"body is copied", testBodyIsCopied},
		{"backpressure", testBackpressure},
		{"caller cancels", testCallerCancels},
		{"caller's deadline", testCallerDeadline},
		{"deadline travels", testDeadlineTravels},
		{"trace", testTrace},
		{"canceled before", testCanceledBefore},
		{"recv fails", testRecvFails},
		{"send after the end", testSendAfterEnd},
		{"fault round trip", testFaultRoundTrip},
		{"plain error", testPlainError},
		{"frames before an error", testFramesBeforeError},
		{"panic", testPanic},
		{"unknown address", testUnknownAddress},
		{"address in use", testAddressInUse},
		{"two servers", testTwoServers},
		{"drain", testDrain},
		{"serve again", testServeAgain},
		{"many calls", testManyCalls},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.test(t, open(t)) })
	}
}

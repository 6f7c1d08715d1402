// Package bustest is the conformance suite of event buses. It relies only on the contract: no fake
// time, no knowledge of the store.
package bustest

import (
	"testing"

	"penstock/internal/plane/bus"
)

// Run tests the bus that open returns. Each part gets its own bus without messages; open registers
// its cleanup with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) bus.Bus) {
	parts := []struct {
		name string
		test func(*testing.T, bus.Bus)
	}{
		{"gossip/delivery", testGossip},
		{"gossip/no replay", testGossipNoReplay},
		{"gossip/subscribers", testGossipSubscribers},
		{"gossip/slow subscriber", testGossipSlow},
		{"durable/delivery", testDurable},
		{"durable/replay", testReplay},
		{"durable/from the future", testFromTheFuture},
		{"durable/ready", testReady},
		{"durable/subscribers", testDurableSubscribers},
		{"durable/resubscribe", testResubscribe},
		{"durable/bounds", testBounds},
		{"durable/concurrent publishers", testConcurrentPublishers},
		{"durable/span", testSpan},
		{"durable/purge", testPurge},
		{"durable/span refuses", testSpanRefuses},
		{"both/any key", testAnyKey},
		{"both/sizes", testSizes},
		{"both/data is copied", testDataIsCopied},
		{"both/topics apart", testTopicsApart},
		{"both/sink fails", testSinkFails},
		{"both/context ends", testContextEnds},
		{"both/sink publishes", testSinkPublishes},
		{"both/bad topics", testBadTopics},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.test(t, open(t)) })
	}
}

// The topics of the suite.
var (
	gossip  = bus.Topic{Name: "gossip"}
	durable = bus.Topic{Name: "durable", Durable: true, MaxBytes: 32 << 20}
)

// forBothKinds runs f once with each kind of topic.
func forBothKinds(t *testing.T, f func(*testing.T, bus.Topic)) {
	for _, topic := range []bus.Topic{gossip, durable} {
		t.Run(topic.Name, func(t *testing.T) { f(t, topic) })
	}
}

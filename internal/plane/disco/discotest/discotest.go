// Package discotest is the conformance suite of registries. It relies only on the contract: no fake
// time, no knowledge of the store.
package discotest

import (
	"testing"

	"penstock/internal/plane/disco"
)

// Run tests the registry that open returns. Each part gets its own registry without instances; open
// registers its cleanup with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) disco.Registry) {
	parts := []struct {
		name string
		test func(*testing.T, disco.Registry)
	}{
		{"empty", testEmpty},
		{"register", testRegister},
		{"every field", testEveryField},
		{"order", testOrder},
		{"kinds apart", testKindsApart},
		{"update", testUpdate},
		{"update of another", testUpdateOfAnother},
		{"release", testRelease},
		{"register again", testRegisterAgain},
		{"higher epoch", testHigherEpoch},
		{"lower epoch", testLowerEpoch},
		{"late watcher", testLateWatcher},
		{"sink keeps the set", testSinkKeeps},
		{"context ends", testContextEnds},
		{"refused", testRefused},
		{"many", testMany},
		{"one winner", testOneWinner},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.test(t, open(t)) })
	}
}

package disagg

import (
	"encoding/binary"
	"flag"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"penstock/core/splitmix"
)

// walk does steps of both models, each with one request or several after the other, and drains them.
func walk(draw func(n int) int, steps int, seen map[string]int, more func() bool) error {
	m, l := newModel(draw, seen), newLegsModel(draw, seen)
	for i := 0; i < steps && more(); i++ {
		if err := m.step(); err != nil {
			return fmt.Errorf("step %d of %+v: %w", i, m.cfg, err)
		}
		if err := l.step(); err != nil {
			return fmt.Errorf("step %d of %+v: %w", i, l.cfg, err)
		}
	}
	if err := m.drain(); err != nil {
		return fmt.Errorf("drain of %+v: %w", m.cfg, err)
	}
	if err := l.drainLegs(); err != nil {
		return fmt.Errorf("drain of %+v: %w", l.cfg, err)
	}
	return nil
}

func always() bool { return true }

// TestPromises checks what the package comment promises, with steps which shrink.
func TestPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
		if err := walk(draw, rapid.IntRange(1, 200).Draw(t, "steps"), map[string]int{}, always); err != nil {
			t.Fatal(err)
		}
	})
}

var manySteps = flag.Int("steps", 1_000_000, "steps of TestManySteps")

// TestManySteps checks them over many random steps: half of them are of Handoffs and PrefillJobs with a queue, workers
// and a network which fail, half of Legs with engines which fail.
func TestManySteps(t *testing.T) {
	seen, rounds := map[string]int{}, *manySteps/2000
	for seed := range uint64(rounds) {
		source := splitmix.Source(splitmix.Mix(seed))
		if err := walk(source.Below, 1000, seen, always); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	t.Logf("%d steps: %v", 2000*rounds, seen)
	for _, name := range []string{
		"remote", "lost", "repeated", "crashes", "writes to a closed transfer", "heartbeats",
		"opened", "refused: stale", "refused: duplicate", "refused: failed before",
		"gave up: incompatible", "gave up: unreachable", "gave up: prefill failed", "gave up: budget spent", "gave up: stale",
		"local: decided", "local: look-up too slow", "local: no memory", "local: nothing to move", "local: blocks reclaimed",
		"local: queue lost", "local: queue too slow", "local: failed before", "local: silent", "local: prefill failed",
		"local: transfer failed", "local: budget spent",
		"cancel: looking up", "cancel: reserving", "cancel: queued", "cancel: prefilling",
		"reclaim: reserving", "reclaim: queued", "reclaim: prefilling",
		"cancel: prefill leg", "cancel: both legs", "cancel: decode leg", "first token: both legs", "first token: decode leg",
		"whole: decided", "whole: no prefill worker", "whole: no handoff", "whole: silent", "whole: prefill failed",
		"whole: decode failed", "whole: first token too slow", "whole: budget spent", "delivered", "late handoff",
		"prefill worker lost",
	} {
		if rounds >= 10 && seen[name] < rounds/10 {
			t.Errorf("%s: only %d times in %d steps", name, seen[name], 2000*rounds)
		}
	}
}

// FuzzPromises has a fuzzer draw the steps.
func FuzzPromises(f *testing.F) {
	for seed := range uint64(4) {
		source := splitmix.Source(seed)
		var b []byte
		for range 1000 {
			b = binary.LittleEndian.AppendUint16(b, uint16(source.Next()))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		steps = steps[:min(len(steps), 8000)]
		draw := func(n int) int {
			if len(steps) < 2 {
				steps = nil
				return 0
			}
			v := binary.LittleEndian.Uint16(steps)
			steps = steps[2:]
			return int(v) % n
		}
		if err := walk(draw, 2000, map[string]int{}, func() bool { return len(steps) > 0 }); err != nil {
			t.Fatal(err)
		}
	})
}

package bus_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
)

// story publishes 300 numbers through faults and returns what a subscriber got,
// and which Publish failed.
func story(t *testing.T, seed uint64, f bustest.BusFaults) (got []string, failed map[int]bool) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.WithFaults(bus.NewMemBus(), seed, f)
		topic := bus.Topic{Name: "t", Durable: true}
		failed = map[int]bool{}
		for i := range 300 {
			err := b.Publish(t.Context(), topic, "k", []byte(strconv.Itoa(i)))
			if err != nil && fault.CodeOf(err) != fault.Unavailable {
				t.Fatal(err)
			}
			failed[i] = err != nil
		}
		c := collect(t, b, topic, 0)
		<-time.After(time.Hour) // of the bubble: delays pass
		c.stop()
		got = c.got
	})
	return got, failed
}

func TestFaultyBus(t *testing.T) {
	for name, test := range map[string]struct {
		faults bustest.BusFaults
		check  func(count map[string]int, failed map[int]bool, inversions int) error
	}{
		"drop": {bustest.BusFaults{Drop: 0.3}, func(count map[string]int, _ map[int]bool, inv int) error {
			return between("messages", len(count), 150, 270, inv == 0)
		}},
		"lose": {bustest.BusFaults{Lose: 0.3}, func(count map[string]int, failed map[int]bool, inv int) error {
			return between("messages", len(count), 150, 270, inv == 0 && !failed[0])
		}},
		"duplicate": {bustest.BusFaults{Duplicate: 0.3}, func(count map[string]int, _ map[int]bool, inv int) error {
			twice := 0
			for _, n := range count {
				twice += n - 1
			}
			return between("duplicates", twice, 30, 150, inv == 0 && len(count) == 300)
		}},
		"reorder": {bustest.BusFaults{Reorder: 0.3}, func(count map[string]int, _ map[int]bool, inv int) error {
			return between("inversions", inv, 30, 150, len(count) >= 299) // the last may be held
		}},
		"fail": {bustest.BusFaults{Fail: 0.4}, func(count map[string]int, failed map[int]bool, inv int) error {
			kept, lost := 0, 0
			for i, f := range failed {
				switch n := count[strconv.Itoa(i)]; {
				case f && n == 1:
					kept++
				case f:
					lost++
				case n != 1:
					return fmt.Errorf("message %d succeeded and came %d times", i, n)
				}
			}
			return between("failures of either kind", min(kept, lost), 30, 100, inv == 0)
		}},
		"delay": {bustest.BusFaults{Delay: time.Second}, func(count map[string]int, _ map[int]bool, inv int) error {
			return between("messages", len(count), 300, 300, inv == 0)
		}},
		"other topic": {bustest.BusFaults{Drop: 1, Topics: []string{"other"}}, func(count map[string]int, _ map[int]bool, inv int) error {
			return between("messages", len(count), 300, 300, inv == 0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, failed := story(t, 1, test.faults)
			count, inversions, previous := map[string]int{}, 0, -1
			for _, s := range got {
				i, err := strconv.Atoi(s)
				if err != nil {
					t.Fatal(err)
				}
				if i < previous {
					inversions++
				}
				previous = i
				count[s]++
			}
			if err := test.check(count, failed, inversions); err != nil {
				t.Errorf("seed 1: %v", err)
			}
			again, _ := story(t, 1, test.faults)
			if strings.Join(again, " ") != strings.Join(got, " ") {
				t.Error("one seed, two stories")
			}
		})
	}
	a, _ := story(t, 1, bustest.BusFaults{Drop: 0.5})
	b, _ := story(t, 2, bustest.BusFaults{Drop: 0.5})
	if strings.Join(a, " ") == strings.Join(b, " ") {
		t.Error("two seeds, one story")
	}
}

func between(what string, n, low, high int, rest bool) error {
	if n < low || n > high || !rest {
		return fmt.Errorf("%d %s, want %d to %d; the rest is right: %v", n, what, low, high, rest)
	}
	return nil
}

// Once the faults are off, everything arrives.
func TestFaultyBusHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.WithFaults(bus.NewMemBus(), 1, bustest.BusFaults{Lose: 1, Reorder: 1})
		topic := bus.Topic{Name: "t"}
		c := collect(t, b, topic, 0)
		publish := func(s string) {
			if err := b.Publish(t.Context(), topic, "k", []byte(s)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		publish("lost")
		b.Set(bustest.BusFaults{Reorder: 1})
		publish("held")
		b.Set(bustest.BusFaults{})
		publish("1")
		publish("2")
		if got := fmt.Sprint(c.got); got != "[1 held 2]" {
			t.Errorf("got %s", got)
		}
		c.stop()
	})
}

func TestFaultyBusDelayEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.WithFaults(bus.NewMemBus(), 1, bustest.BusFaults{Delay: 1000 * time.Hour})
		topic := bus.Topic{Name: "t", Durable: true}
		if err := b.Publish(t.Context(), topic, "k", nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Subscribe(ctx, topic, 0, func(bus.Message) error { return nil }, nil); err != nil {
			t.Error(err)
		}
	})
}

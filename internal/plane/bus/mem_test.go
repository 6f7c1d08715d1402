package bus_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
)

func TestMem(t *testing.T) {
	bustest.Run(t, func(*testing.T) bus.Bus { return bus.NewMemBus() })
}

// A bus without faults behind the wrapper is still a bus.
func TestFaultyWithoutFaults(t *testing.T) {
	bustest.Run(t, func(*testing.T) bus.Bus { return bustest.WithFaults(bus.NewMemBus(), 1, bustest.BusFaults{}) })
}

// collect subscribes within a bubble and returns what came when the bubble was
// idle.
type collector struct {
	got  []string
	seqs []uint64
	stop func()
}

func collect(t *testing.T, b bus.Bus, topic bus.Topic, from uint64) *collector {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &collector{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := b.Subscribe(ctx, topic, from, func(m bus.Message) error {
			c.got = append(c.got, string(m.Data))
			c.seqs = append(c.seqs, m.Seq)
			return nil
		}, nil)
		if err != nil {
			t.Errorf("Subscribe: %v", err)
		}
	}()
	c.stop = func() {
		cancel()
		<-done
	}
	synctest.Wait()
	return c
}

func TestMemAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bus.NewMemBus()
		topic := bus.Topic{Name: "t", Durable: true, MaxAge: time.Minute}
		for i := range 10 {
			if err := b.Publish(t.Context(), topic, "k", []byte(strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Second) // of the bubble: it costs nothing
		}
		c := collect(t, b, topic, 0)
		if got := fmt.Sprint(c.seqs, c.got); got != "[5 6 7 8 9 10] [4 5 6 7 8 9]" {
			t.Errorf("after 100 s the last minute is kept, got %s", got)
		}
		c.stop()
		<-time.After(time.Hour)
		c = collect(t, b, topic, 0)
		if err := b.Publish(t.Context(), topic, "k", []byte("new")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := fmt.Sprint(c.seqs, c.got); got != "[11] [new]" {
			t.Errorf("after an hour nothing is kept, then came %s", got)
		}
		c.stop()
	})
}

func TestMemDropsOldestExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bus.NewMemBus()
		topic := bus.Topic{Name: "t"}
		leave := make(chan struct{})
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- b.Subscribe(ctx, topic, 0, func(m bus.Message) error {
				<-leave
				got = append(got, string(m.Data))
				return nil
			}, nil)
		}()
		synctest.Wait()
		for i := range bus.QueueMessages + 101 {
			if err := b.Publish(t.Context(), topic, "k", []byte(strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the sink holds the first
		}
		if b.Dropped() != 100 {
			t.Errorf("%d messages counted as dropped, want 100", b.Dropped())
		}
		close(leave)
		synctest.Wait()
		if len(got) != bus.QueueMessages+1 || got[0] != "0" || got[1] != "101" || got[bus.QueueMessages] != strconv.Itoa(bus.QueueMessages+100) {
			t.Errorf("%d messages, the second is %s", len(got), got[1])
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestMemQueueBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bus.NewMemBus()
		topic := bus.Topic{Name: "t"}
		c := 0
		leave := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- b.Subscribe(ctx, topic, 0, func(m bus.Message) error {
				<-leave
				c++
				return nil
			}, nil)
		}()
		synctest.Wait()
		for range 21 {
			if err := b.Publish(t.Context(), topic, "k", make([]byte, 512<<10)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if b.Dropped() != 4 { // one in hand, 16 are 8 MiB
			t.Errorf("%d messages dropped, want 4", b.Dropped())
		}
		close(leave)
		synctest.Wait()
		if c != 17 {
			t.Errorf("%d messages delivered, want 17", c)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

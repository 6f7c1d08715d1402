package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"penstock/internal/zmtp"
)

// subscribeResult is one measurement.
type result struct {
	Messages uint64
	Size     int
	Took     time.Duration // from the first message to the last
	CPU      time.Duration // of the subscribing process in that time
	Allocs   uint64
}

func (r result) rate() float64 { return float64(r.Messages) / r.Took.Seconds() }
func (r result) cpu() float64  { return float64(r.CPU) / float64(r.Messages) }

// printBenchLine writes r as a line of "go test -bench".
func (r result) print(name string) {
	fmt.Printf("Benchmark%s-%d %d %.0f msgs/s %.0f MB/s %.0f cpu-ns/msg %.3f allocs/msg\n", name, runtime.NumCPU(),
		r.Messages, r.rate(), r.rate()*float64(r.Size)/1e6, r.cpu(), float64(r.Allocs)/float64(r.Messages))
}

// messageCounter checks the messages and takes the time.
type counter struct {
	size, count int
	next        uint64
	began       time.Time
	cpu         time.Duration
	allocs      uint64
}

// errDone means that all messages were received.
var errDone = errors.New("all messages have come")

func (c *counter) take(frames [][]byte) error {
	if len(frames) != 3 || len(frames[2]) != c.size {
		return fmt.Errorf("a message of %d frames", len(frames))
	}
	if n := binary.BigEndian.Uint64(frames[1]); n != c.next {
		return fmt.Errorf("number %d after %d: %d are lost", n, c.next, n-c.next)
	}
	if c.next == 0 {
		c.cpu, c.allocs = spent()
		c.began = time.Now()
	}
	if c.next++; c.next == uint64(c.count) {
		return errDone
	}
	return nil
}

// resourcesSpent returns the resource use of this process so far.
func spent() (cpu time.Duration, allocs uint64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var r syscall.Rusage
	// It fails only for wrong arguments.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), m.Mallocs
}

// runSubscriber receives all messages and prints a result.
func subscribe(kind, addr string, size, count int) error {
	c := &counter{size: size, count: count}
	receive := subscribeOurs
	if kind == "libzmq" {
		receive = subscribeLibzmq
	}
	if err := receive(addr, c); !errors.Is(err, errDone) {
		return err
	}
	took := time.Since(c.began)
	cpu, allocs := spent()
	return json.NewEncoder(os.Stdout).Encode(result{uint64(count), size, took, cpu - c.cpu, allocs - c.allocs})
}

func subscribeOurs(addr string, c *counter) error {
	ep, err := zmtp.ParseEndpoint(addr)
	if err != nil {
		return err
	}
	return zmtp.Subscribe(context.Background(), ep, nil, zmtp.Options{}, c.take)
}

func subscribeLibzmq(addr string, c *counter) error {
	s, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		return err
	}
	if err := errors.Join(s.SetRcvhwm(highWater), s.SetSubscribe(""), s.Connect(addr)); err != nil {
		return err
	}
	for {
		frames, err := s.RecvMessageBytes(0)
		if err == nil {
			err = c.take(frames)
		}
		if err != nil {
			return err
		}
	}
}

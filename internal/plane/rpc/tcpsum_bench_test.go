//go:build unix

package rpc

import (
	"context"
	"encoding/binary"
	"syscall"
	"testing"
	"time"
)

// benchSizes are frames of an answer: a token, many of them, and an embedding.
var benchSizes = []struct {
	name string
	size int
}{{"64B", 64}, {"4KiB", 4 << 10}, {"1MiB", 1 << 20}}

var benchEnds = []struct {
	name string
	old  bool
}{{"without", true}, {"with", false}}

// BenchmarkTCPFraming is what it costs to write frames into a buffer and to read them out
// of it, with checksums and without.
func BenchmarkTCPFraming(b *testing.B) {
	for _, s := range benchSizes {
		for _, e := range benchEnds {
			b.Run(s.name+"/"+e.name, func(b *testing.B) {
				f := framing{checksums: !e.old}
				payload := randomBytes(s.size)
				var buf []byte
				b.ReportAllocs()
				b.SetBytes(int64(s.size))
				for b.Loop() {
					for left := payload; len(left) > 0; {
						n := min(len(left), tcpPayload)
						buf = f.appendFrame(buf[:0], frameData, 1, left[:n], nil)
						left = left[n:]
						if _, _, _, size, err := f.splitFrame(buf); err != nil || size == 0 {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}

// BenchmarkTCPChecksums is the processor time of a frame from a handler to its caller, of
// both ends, over the loopback interface: paced, as tokens come, or as fast as it goes.
func BenchmarkTCPChecksums(b *testing.B) {
	for _, pace := range []time.Duration{0, 200 * time.Microsecond} {
		for _, s := range benchSizes {
			for _, e := range benchEnds {
				name := "flood/" + s.name + "/" + e.name
				if pace > 0 {
					name = "paced/" + s.name + "/" + e.name
				}
				b.Run(name, func(b *testing.B) { benchFrames(b, s.size, pace, e.old) })
			}
		}
	}
}

func benchFrames(b *testing.B, size int, pace time.Duration, old bool) {
	p, err := NewTCPPlane(TCPConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	p.noChecksums = old
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- p.Serve(ctx, "", func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
			frame := randomBytes(size)
			for range binary.LittleEndian.Uint64(body) {
				if err := send(frame); err != nil {
					return err
				}
				if pace > 0 {
					time.Sleep(pace)
				}
			}
			return nil
		}, func(at string) { ready <- at })
	}()
	addr := <-ready
	defer func() {
		cancel()
		<-done
	}()
	call := func(n int) {
		if err := p.Call(b.Context(), addr, "m", binary.LittleEndian.AppendUint64(nil, uint64(n)), discard); err != nil {
			b.Fatal(err)
		}
	}
	call(16) // the buffers grow
	before := processorTime(b)
	b.ResetTimer()
	call(b.N)
	b.StopTimer()
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/frame")
}

// processorTime returns what the process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

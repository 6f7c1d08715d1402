package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

// rateRow is the rate of one plane at one size.
type rateRow struct {
	Plane    string `json:"plane"`
	Bytes    int    `json:"bytes"`
	InFlight int    `json:"in_flight"`
	// CPU is the processor time of both processes, in microseconds for each MiB.
	CPU       float64    `json:"cpu_us_per_mib"`
	GBps      float64    `json:"gb_per_s"`
	Baselines []baseline `json:"baselines"`
}

// baseline is a rate of the same run. Ratio is the plane's rate to it, the median of the rounds.
type baseline struct {
	Name  string  `json:"name"`
	GBps  float64 `json:"gb_per_s"`
	Ratio float64 `json:"ratio"`
	CPU   float64 `json:"cpu_us_per_mib,omitempty"`
}

// shape is a size and how many are in flight.
type shape struct{ bytes, inFlight int }

func shapes() []shape { return []shape{{64 << 10, 16}, {1 << 20, 1}, {64 << 20, 1}} }

// median returns the median.
func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// rateOf returns GB/s.
func rateOf(bytes int64, took time.Duration) float64 { return float64(bytes) / took.Seconds() / 1e9 }

// loopUntil calls f, which moves n bytes, until d is over, and returns GB/s.
func loopUntil(d time.Duration, n int, f func(i int)) float64 {
	began, total := time.Now(), int64(0)
	for i := 0; ; i++ {
		f(i)
		total += int64(n)
		if took := time.Since(began); took >= d {
			return rateOf(total, took)
		}
	}
}

// copyLoops are the plain loops over sets of buffers.
type copyLoops struct{ src, mid, dst [][]byte }

func newCopyLoops(s shape) *copyLoops {
	l := &copyLoops{}
	for range s.inFlight {
		for _, list := range []*[][]byte{&l.src, &l.mid, &l.dst} {
			b := make([]byte, s.bytes)
			for i := range b {
				b[i] = byte(i)
			}
			*list = append(*list, b)
		}
	}
	return l
}

// measurePlain is the plain loop: copy, digest, copy.
func (s *settings) measurePlain(p *pair, l *copyLoops) (m measured) {
	before, began := p.processorTime(), time.Now()
	for i := 0; m.took < s.each; i++ {
		k := i % len(l.src)
		copy(l.mid[k], l.src[k])
		runtime.KeepAlive(xxh3.Hash(l.mid[k]))
		copy(l.dst[k], l.mid[k])
		m.bytes += int64(len(l.src[k]))
		m.took = time.Since(began)
	}
	m.used = p.processorTime() - before
	return m
}

// measureSplit is the plain loop with its first copy in one thread, and the digest and the second copy in
// another: the bytes cross between two cores, as they do between two processes. The threads wait for each
// other by reading a counter in a loop, which costs less than any other way and takes both cores whole.
func (s *settings) measureSplit(l *copyLoops) float64 {
	var filled, taken atomic.Int64
	var over atomic.Bool
	slots := int64(len(l.mid))
	if slots == 1 { // of which parts are in flight
		l = l.split(16)
		slots = 16
	}
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := int64(0); ; i++ {
			for i-taken.Load() >= slots {
				if over.Load() {
					return
				}
			}
			copy(l.mid[i%slots], l.src[i%slots])
			filled.Store(i + 1)
		}
	})
	n := int64(0)
	rate := loopUntil(s.each, len(l.dst[0]), func(int) {
		for filled.Load() <= n {
		}
		k := n % slots
		runtime.KeepAlive(xxh3.Hash(l.mid[k]))
		copy(l.dst[k], l.mid[k])
		n++
		taken.Store(n)
	})
	over.Store(true)
	writer.Wait()
	return rate
}

// split returns loops over n equal parts of each buffer.
func (l *copyLoops) split(n int) *copyLoops {
	parts := &copyLoops{}
	for _, of := range []struct{ from, to *[][]byte }{{&l.src, &parts.src}, {&l.mid, &parts.mid}, {&l.dst, &parts.dst}} {
		for _, b := range *of.from {
			*of.to = slices.AppendSeq(*of.to, slices.Chunk(b, len(b)/n))
		}
	}
	return parts
}

// measureCopy is memcpy alone.
func (l *copyLoops) measureCopy(d time.Duration) float64 {
	return loopUntil(d, len(l.src[0]), func(i int) {
		i %= len(l.src)
		copy(l.dst[i], l.src[i])
	})
}

// measureRates measures all planes at all sizes, in turns with their baselines.
func (s *settings) measureRates(ctx context.Context, p *pair) (rows []rateRow, err error) {
	for _, sh := range shapes() {
		if s.bytes != 0 && s.bytes != sh.bytes {
			continue
		}
		loops := newCopyLoops(sh)
		figures := map[string][]float64{}
		for range s.rounds + 1 {
			plain := s.record("plain", figures, func() (measured, error) { return s.measurePlain(p, loops), nil })
			shm := s.record("shm", figures, func() (measured, error) { return s.measurePlane(ctx, p, "shm", sh) })
			stream := s.record("stream", figures, func() (measured, error) { return s.measureStream(p, sh) })
			tcp := s.record("tcp", figures, func() (measured, error) { return s.measurePlane(ctx, p, "tcp", sh) })
			if err := s.failed; err != nil {
				return nil, err
			}
			iperf := s.measureIperf(ctx)
			for name, v := range map[string]float64{
				"two plain": s.measureTwoPlain(sh), "split": s.measureSplit(loops), "memcpy": loops.measureCopy(s.each), "iperf3": iperf,
				"shm/plain": shm / plain, "tcp/stream": tcp / stream, "tcp/iperf3": tcp / cmp.Or(iperf, 1),
			} {
				figures[name] = append(figures[name], v)
			}
		}
		of := func(name string) float64 { return median(figures[name][1:]) } // the first round warms up
		rows = append(rows, rateRow{"shm", sh.bytes, sh.inFlight, of("shm CPU"), of("shm"), []baseline{
			{"copy, digest, copy in a loop", of("plain"), of("shm/plain"), of("plain CPU")},
			{"its first copy on one core, the rest on another", of("split"), of("shm") / of("split"), 0},
			{"two such loops at once", of("two plain"), of("shm") / of("two plain"), 0},
			{"memcpy", of("memcpy"), of("shm") / of("memcpy"), 0},
		}})
		tcp := rateRow{"tcp", sh.bytes, sh.inFlight, of("tcp CPU"), of("tcp"), []baseline{{"Go TCP stream", of("stream"), of("tcp/stream"), of("stream CPU")}}}
		if of("iperf3") > 0 {
			tcp.Baselines = append(tcp.Baselines, baseline{"iperf3", of("iperf3"), of("tcp/iperf3"), 0})
		}
		rows = append(rows, tcp)
	}
	return rows, nil
}

// record appends what f measures to figures: the rate, and the processor time for each MiB. An error is
// kept in s.failed.
func (s *settings) record(name string, figures map[string][]float64, f func() (measured, error)) float64 {
	m, err := f()
	if err != nil && s.failed == nil {
		s.failed = err
	}
	figures[name] = append(figures[name], m.rate())
	figures[name+" CPU"] = append(figures[name+" CPU"], m.used.Seconds()*1e6/(float64(m.bytes)/(1<<20)))
	return m.rate()
}

// measureTwoPlain runs two plain loops at the same time, and returns their sum.
func (s *settings) measureTwoPlain(sh shape) float64 {
	var both sync.WaitGroup
	rates := make([]float64, 2)
	half := shape{sh.bytes, max(sh.inFlight/2, 1)}
	for i := range rates {
		loops := newCopyLoops(half)
		both.Go(func() {
			began, total := time.Now(), int64(0)
			for n := 0; time.Since(began) < s.each; n++ {
				k := n % len(loops.src)
				copy(loops.mid[k], loops.src[k])
				d := xxh3.Hash(loops.mid[k])
				copy(loops.dst[k], loops.mid[k])
				runtime.KeepAlive(d)
				total += int64(sh.bytes)
			}
			rates[i] = rateOf(total, time.Since(began))
		})
	}
	both.Wait()
	return rates[0] + rates[1]
}

// ahead bounds the transfers which are open at a time: an owner opens one when it wants bytes, not
// thousands in advance.
const ahead = 1024

// batchesFor returns batches which take a part of a measurement's time.
func batchesFor(sh shape) (list []batch, bytes int64) {
	count := max(min(ahead/sh.inFlight, 256<<20/sh.bytes/sh.inFlight), 2)
	for lane := range sh.inFlight {
		list = append(list, batch{lane: lane, size: sh.bytes, count: count})
	}
	return list, int64(count) * int64(sh.bytes) * int64(sh.inFlight)
}

// measured is what was moved, in which time, and the processor time of both processes meanwhile.
type measured struct {
	bytes      int64
	took, used time.Duration
}

func (m *measured) add(bytes int64, p *pair, took time.Duration) {
	m.bytes += bytes
	m.took += took
	m.used += p.used
}

func (m measured) rate() float64 { return rateOf(m.bytes, m.took) }

func (s *settings) measurePlane(ctx context.Context, p *pair, transport string, sh shape) (m measured, err error) {
	list, bytes := batchesFor(sh)
	for m.took < s.each {
		took, _, err := p.moveBatches(ctx, transport, list)
		if err != nil {
			return m, err
		}
		m.add(bytes, p, took)
	}
	return m, nil
}

// measureStream measures a bare stream of the same bytes, from and to the same memory.
func (s *settings) measureStream(p *pair, sh shape) (m measured, err error) {
	_, bytes := batchesFor(sh)
	for m.took < s.each {
		took, err := p.streamBare(sh.bytes, sh.inFlight, bytes)
		if err != nil {
			return m, err
		}
		m.add(bytes, p, took)
	}
	return m, nil
}

// measureIperf returns the rate of iperf3 over loopback, 0 if it is not installed or fails.
func (s *settings) measureIperf(ctx context.Context) float64 {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return 0
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	server := exec.CommandContext(ctx, "iperf3", "-s", "-1", "-p", port, "-B", "127.0.0.1", "--forceflush")
	said, err := server.StdoutPipe()
	if err != nil || server.Start() != nil {
		return 0
	}
	defer func() {
		_ = server.Process.Kill() // if no client came
		_ = server.Wait()
	}()
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "listening") {
	}
	seconds := strconv.Itoa(max(int(s.each.Seconds()+0.5), 1))
	out, err := exec.CommandContext(ctx, "iperf3", "-c", "127.0.0.1", "-p", port, "-t", seconds, "-J").Output()
	var r struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err != nil || json.Unmarshal(out, &r) != nil {
		return 0
	}
	return r.End.Received.Bits / 8e9
}

// latencyRow is the time of single transfers of 64 KiB at the writer, from Open until Commit has
// returned, beside others.
type latencyRow struct {
	Plane   string  `json:"plane"`
	Bytes   int     `json:"bytes"`
	Beside  int     `json:"bulk_transfers_beside"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
	Samples int     `json:"samples"`
}

func (s *settings) measureLatency(ctx context.Context, p *pair) (rows []latencyRow, err error) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, beside := range []int{0, 16} {
			samples, err := s.timeSmall(ctx, p, transport, beside)
			if err != nil {
				return nil, fmt.Errorf("latency: %w", err)
			}
			slices.Sort(samples)
			at := func(q float64) float64 { return float64(samples[int(q*float64(len(samples)-1))].Nanoseconds()) / 1e3 }
			rows = append(rows, latencyRow{transport, 64 << 10, beside, at(0.5), at(0.99), len(samples)})
		}
	}
	return rows, nil
}

// timeSmall returns the times of small transfers, one after the other, beside bulk ones.
func (s *settings) timeSmall(ctx context.Context, p *pair, transport string, beside int) ([]time.Duration, error) {
	list := []batch{{lane: 0, size: 64 << 10, count: 2000}}
	for lane := range beside {
		list = append(list, batch{lane: lane + 1, size: 64 << 20, count: 2})
	}
	_, times, err := p.moveBatches(ctx, transport, list)
	return times, err
}

// digestRow is the rate of a digest on one core.
type digestRow struct {
	Digest string  `json:"digest"`
	Bytes  int     `json:"bytes"`
	GBps   float64 `json:"gb_per_s"`
}

func (s *settings) measureDigests() (rows []digestRow) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for _, n := range []int{64 << 10, 128 << 10, 1 << 20} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * 7)
		}
		for _, d := range []struct {
			name string
			f    func(int)
		}{
			{"xxh3-64", func(int) { runtime.KeepAlive(xxh3.Hash(b)) }},
			{"xxh3-128", func(int) { runtime.KeepAlive(xxh3.Hash128(b)) }},
			{"crc32c", func(int) { runtime.KeepAlive(crc32.Checksum(b, castagnoli)) }},
		} {
			var rates []float64
			for range s.rounds {
				rates = append(rates, loopUntil(s.each/10, n, d.f))
			}
			rows = append(rows, digestRow{d.name, n, median(rates)})
		}
	}
	return rows
}

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"penstock/core/kv"
)

// namedSubject is a measured subject with its name.
type contender struct {
	name string
	subject
}

// setupBench is the measurement of one setup.
type bench struct {
	*setup
	*report
	window time.Duration // of each measurement
	rounds int           // of throughput; the median counts
	evicts int           // one in this many blocks
	sample int           // requests compared with the oracle
	storm  steps
	truth  *oracle
	table  *bitmaps
	prefix prefixSubject
	all    []contender
}

// runSteps measures everything and fails if an answer was wrong.
func (b *bench) run() error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"build", b.build},
		{"compare", func() error { return b.compare("Match") }},
		{"throughput", func() error { return b.throughput("Lookup", 1, runtime.GOMAXPROCS(0)) }},
		{"latency", func() error { return b.latency("Latency", 1, stormReaders) }},
		{"hashing", b.hashing},
		{"picks", b.picks},
		{"storms", b.storms},
		{"compare after the storms", func() error { return b.compare("Match-after-storm") }},
		{"evict", b.evict},
	} {
		fmt.Fprintf(os.Stderr, "%s: %s\n", b.setup, step.name)
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %s: %w", b.setup, step.name, err)
		}
	}
	return nil
}

// buildIndexes fills both, and reports time and memory.
func (b *bench) build() (err error) {
	if b.storm, err = newSteps(b.workload, b.workers); err != nil {
		return err
	}
	b.truth = b.setup.truth()
	empty := heap()
	b.table = newBitmaps(b.workers, b.unique+b.storm.prefixes())
	if err := b.filled(walkName, bitmapSubject{b.table}, empty); err != nil {
		return err
	}
	empty = heap()
	if b.prefix, err = newPrefix(); err != nil {
		return err
	}
	if err := b.filled(prefixName, b.prefix, empty); err != nil {
		return err
	}
	if s := b.prefix.index.Stats(); s.Entries != b.truth.entries {
		return fmt.Errorf("holds %d entries, not %d", s.Entries, b.truth.entries)
	}
	b.all = []contender{
		{walkName, bitmapSubject{b.table}},
		{gallopName, gallopSubject{bitmapSubject{b.table}}},
		{prefixName, b.prefix},
	}
	b.storm.settle(b.table.holds)
	return nil
}

// fillSubject fills one subject; empty is the heap before it was made.
func (b *bench) filled(name string, s subject, empty int) error {
	events, blocks := 0, 0
	begin := time.Now()
	b.fill(func(w int, r *request, from, to int) {
		s.store(w, r, from, to)
		events++
		blocks += to - from
	})
	took := time.Since(begin).Seconds()
	bytes := heap() - empty
	b.add(b.setup, "Fill", name,
		metric{"events/s", float64(events) / took}, metric{"blocks/s", float64(blocks) / took},
		metric{"entries", float64(b.truth.entries)}, metric{"B/entry", float64(bytes) / float64(b.truth.entries)},
		metric{"B/block", float64(bytes) / float64(b.unique)})
	runtime.KeepAlive(s)
	return nil
}

// compareWithOracle compares both with the oracle, for every worker.
func (b *bench) compare(test string) error {
	var wrong error
	for _, c := range b.all {
		p, ok := c.reader().(picker)
		if !ok {
			continue
		}
		var a agreement
		a.compare(p, b.truth, b.workload, b.sample)
		b.add(b.setup, test, c.name, metric{"requests", float64(a.asked)},
			metric{"wrong", float64(a.wrong)}, metric{"matched-%", 100 * a.share()})
		if a.wrong > 0 {
			wrong = errors.Join(wrong, fmt.Errorf("%s: %d of %d answers are not the oracle's", c.name, a.wrong, a.asked))
		}
	}
	return wrong
}

// measureRates measures all in turns, so that disturbances of the machine affect all.
func (b *bench) throughput(test string, goroutines ...int) error {
	for _, n := range goroutines {
		requests, blocks := make([][]float64, len(b.all)), make([][]float64, len(b.all))
		for range b.rounds {
			for i, c := range b.all {
				got, err := throughput(c, b.workload, n, b.window)
				if err != nil {
					return err
				}
				requests[i], blocks[i] = append(requests[i], got.requests), append(blocks[i], got.blocks)
			}
		}
		base := median(requests[0])
		for i, c := range b.all {
			b.add(b.setup, fmt.Sprintf("%s/goroutines=%d", test, n), c.name,
				metric{"requests/s", median(requests[i])}, metric{"blocks/s", median(blocks[i])}, metric{"ratio", median(requests[i]) / base})
		}
	}
	return nil
}

// latencyMetrics are the metrics of a distribution.
func times(h *histogram) []metric {
	us := func(share float64) float64 { return float64(h.at(share).Nanoseconds()) / 1e3 }
	return []metric{{"p50-us", us(0.5)}, {"p99-us", us(0.99)}, {"p999-us", us(0.999)}, {"max-us", us(1)}}
}

func (b *bench) latency(test string, goroutines ...int) error {
	for _, n := range goroutines {
		for _, c := range b.all {
			h, _ := latency(c, b.workload, n, b.window)
			b.add(b.setup, fmt.Sprintf("%s/goroutines=%d", test, n), c.name, times(&h)...)
		}
	}
	return nil
}

func (b *bench) hashing() error {
	var base float64
	for i, c := range b.all {
		got, err := hashed(c, b.workload, b.window)
		if err != nil {
			return err
		}
		if i == 0 {
			base = got.requests
		}
		b.add(b.setup, "Lookup-with-hashing/goroutines=1", c.name,
			metric{"requests/s", got.requests}, metric{"blocks/s", got.blocks}, metric{"ratio", got.requests / base})
	}
	return nil
}

// measureAllPicks measures answers with the overlap of every worker.
func (b *bench) picks() error {
	var base float64
	for _, c := range b.all {
		p, ok := c.reader().(picker)
		if !ok {
			continue
		}
		perSecond, workers := picks(p, b.workload, b.window)
		if base == 0 {
			base = perSecond
		}
		b.add(b.setup, "Pick-over-all/goroutines=1", c.name, metric{"requests/s", perSecond},
			metric{"workers/answer", workers}, metric{"ratio", perSecond / base})
	}
	return nil
}

// measureStorms measures a writer's rate, alone and beside readers, and the readers' latency.
func (b *bench) storms() error {
	for _, c := range b.all {
		storm := b.storm.over(c)
		events, blocks := storm.alone(b.window)
		storm.drain()
		b.add(b.setup, "Apply", c.name, metric{"events/s", events}, metric{"blocks/s", blocks})
	}
	for _, k := range []struct {
		name string
		pace float64
	}{{"Storm/pace=full", 0}, {"Storm/pace=200k", 200_000}} {
		for _, c := range b.all {
			storm := b.storm.over(c)
			got := storm.during(b.workload, b.window, k.pace)
			storm.drain()
			b.add(b.setup, k.name, c.name, append(times(&got.latency),
				metric{"requests/s", float64(got.latency.total) / b.window.Seconds()},
				metric{"events/s", got.events}, metric{"blocks/s", got.blocks}, metric{"short", float64(got.short)})...)
			if got.short > 0 {
				return fmt.Errorf("%s: %d answers were not as deep as what is held", c.name, got.short)
			}
		}
	}
	return nil
}

// measureAfterEviction removes a share of the blocks, anywhere, and measures again.
func (b *bench) evict() error {
	b.setup.evict(b.evicts, func(w int, seqs []kv.SeqHash) {
		b.table.remove(w, seqs)
		b.prefix.remove(w, seqs)
		for _, seq := range seqs {
			b.truth.remove(w, seq)
		}
	})
	if err := b.compare("Match-after-eviction"); err != nil {
		return err
	}
	if err := b.throughput("Lookup-after-eviction", 1); err != nil {
		return err
	}
	return b.latency("Latency-after-eviction", 1)
}

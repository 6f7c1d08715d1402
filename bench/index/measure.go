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
type namedSubject struct {
	name string
	indexSubject
}

// setupBench is the measurement of one setup.
type setupBench struct {
	*clusterSetup
	*indexReport
	window     time.Duration // of each measurement
	rounds     int           // of throughput; the median counts
	evictEvery int           // one in this many blocks
	sample     int           // requests compared with the oracle
	storm      stormScript
	truth      *holderOracle
	table      *bitmapTable
	prefix     prefixSubject
	all        []namedSubject
}

// runSteps measures everything and fails if an answer was wrong.
func (b *setupBench) runSteps() error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"build", b.buildIndexes},
		{"compare", func() error { return b.compareWithOracle("Match") }},
		{"throughput", func() error { return b.measureRates("Lookup", 1, runtime.GOMAXPROCS(0)) }},
		{"latency", func() error { return b.measureLatencies("Latency", 1, stormReaders) }},
		{"hashing", b.measureHashing},
		{"picks", b.measureAllPicks},
		{"storms", b.measureStorms},
		{"compare after the storms", func() error { return b.compareWithOracle("Match-after-storm") }},
		{"evict", b.measureAfterEviction},
	} {
		fmt.Fprintf(os.Stderr, "%s: %s\n", b.clusterSetup, step.name)
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %s: %w", b.clusterSetup, step.name, err)
		}
	}
	return nil
}

// buildIndexes fills both, and reports time and memory.
func (b *setupBench) buildIndexes() (err error) {
	if b.storm, err = newStormScript(b.requestSet, b.workers); err != nil {
		return err
	}
	b.truth = b.clusterSetup.newTruth()
	empty := heapInUse()
	b.table = newBitmapTable(b.workers, b.unique+b.storm.countPrefixes())
	if err := b.fillSubject(walkName, bitmapSubject{b.table}, empty); err != nil {
		return err
	}
	empty = heapInUse()
	if b.prefix, err = newPrefixSubject(); err != nil {
		return err
	}
	if err := b.fillSubject(prefixName, b.prefix, empty); err != nil {
		return err
	}
	if s := b.prefix.index.Stats(); s.Entries != b.truth.entries {
		return fmt.Errorf("holds %d entries, not %d", s.Entries, b.truth.entries)
	}
	b.all = []namedSubject{
		{walkName, bitmapSubject{b.table}},
		{gallopName, gallopSubject{bitmapSubject{b.table}}},
		{prefixName, b.prefix},
	}
	b.storm.resolveBases(b.table.workerHolds)
	return nil
}

// fillSubject fills one subject; empty is the heap before it was made.
func (b *setupBench) fillSubject(name string, s indexSubject, empty int) error {
	events, blocks := 0, 0
	begin := time.Now()
	b.fillIndex(func(w int, r *request, from, to int) {
		s.storeRange(w, r, from, to)
		events++
		blocks += to - from
	})
	took := time.Since(begin).Seconds()
	bytes := heapInUse() - empty
	b.addRow(b.clusterSetup, "Fill", name,
		unitValue{"events/s", float64(events) / took}, unitValue{"blocks/s", float64(blocks) / took},
		unitValue{"entries", float64(b.truth.entries)}, unitValue{"B/entry", float64(bytes) / float64(b.truth.entries)},
		unitValue{"B/block", float64(bytes) / float64(b.unique)})
	runtime.KeepAlive(s)
	return nil
}

// compareWithOracle compares both with the oracle, for every worker.
func (b *setupBench) compareWithOracle(test string) error {
	var wrong error
	for _, c := range b.all {
		p, ok := c.newReader().(overlapReader)
		if !ok {
			continue
		}
		var a answerAgreement
		a.compareAnswers(p, b.truth, b.requestSet, b.sample)
		b.addRow(b.clusterSetup, test, c.name, unitValue{"requests", float64(a.asked)},
			unitValue{"wrong", float64(a.wrong)}, unitValue{"matched-%", 100 * a.matchedShare()})
		if a.wrong > 0 {
			wrong = errors.Join(wrong, fmt.Errorf("%s: %d of %d answers are not the oracle's", c.name, a.wrong, a.asked))
		}
	}
	return wrong
}

// measureRates measures all in turns, so that disturbances of the machine affect all.
func (b *setupBench) measureRates(test string, goroutines ...int) error {
	for _, n := range goroutines {
		requests, blocks := make([][]float64, len(b.all)), make([][]float64, len(b.all))
		for range b.rounds {
			for i, c := range b.all {
				got, err := measureThroughput(c, b.requestSet, n, b.window)
				if err != nil {
					return err
				}
				requests[i], blocks[i] = append(requests[i], got.requests), append(blocks[i], got.blocks)
			}
		}
		base := medianOf(requests[0])
		for i, c := range b.all {
			b.addRow(b.clusterSetup, fmt.Sprintf("%s/goroutines=%d", test, n), c.name,
				unitValue{"requests/s", medianOf(requests[i])}, unitValue{"blocks/s", medianOf(blocks[i])}, unitValue{"ratio", medianOf(requests[i]) / base})
		}
	}
	return nil
}

// latencyMetrics are the metrics of a distribution.
func latencyMetrics(h *latencyHistogram) []unitValue {
	us := func(share float64) float64 { return float64(h.durationAt(share).Nanoseconds()) / 1e3 }
	return []unitValue{{"p50-us", us(0.5)}, {"p99-us", us(0.99)}, {"p999-us", us(0.999)}, {"max-us", us(1)}}
}

func (b *setupBench) measureLatencies(test string, goroutines ...int) error {
	for _, n := range goroutines {
		for _, c := range b.all {
			h, _ := measureLatency(c, b.requestSet, n, b.window)
			b.addRow(b.clusterSetup, fmt.Sprintf("%s/goroutines=%d", test, n), c.name, latencyMetrics(&h)...)
		}
	}
	return nil
}

func (b *setupBench) measureHashing() error {
	var base float64
	for i, c := range b.all {
		got, err := measureWithHashing(c, b.requestSet, b.window)
		if err != nil {
			return err
		}
		if i == 0 {
			base = got.requests
		}
		b.addRow(b.clusterSetup, "Lookup-with-hashing/goroutines=1", c.name,
			unitValue{"requests/s", got.requests}, unitValue{"blocks/s", got.blocks}, unitValue{"ratio", got.requests / base})
	}
	return nil
}

// measureAllPicks measures answers with the overlap of every worker.
func (b *setupBench) measureAllPicks() error {
	var base float64
	for _, c := range b.all {
		p, ok := c.newReader().(overlapReader)
		if !ok {
			continue
		}
		perSecond, workers := measurePicks(p, b.requestSet, b.window)
		if base == 0 {
			base = perSecond
		}
		b.addRow(b.clusterSetup, "Pick-over-all/goroutines=1", c.name, unitValue{"requests/s", perSecond},
			unitValue{"workers/answer", workers}, unitValue{"ratio", perSecond / base})
	}
	return nil
}

// measureStorms measures a writer's rate, alone and beside readers, and the readers' latency.
func (b *setupBench) measureStorms() error {
	for _, c := range b.all {
		storm := b.storm.newStormWriter(c)
		events, blocks := storm.runAlone(b.window)
		storm.removeAll()
		b.addRow(b.clusterSetup, "Apply", c.name, unitValue{"events/s", events}, unitValue{"blocks/s", blocks})
	}
	for _, k := range []struct {
		name string
		pace float64
	}{{"Storm/pace=full", 0}, {"Storm/pace=200k", 200_000}} {
		for _, c := range b.all {
			storm := b.storm.newStormWriter(c)
			got := storm.runWithReaders(b.requestSet, b.window, k.pace)
			storm.removeAll()
			b.addRow(b.clusterSetup, k.name, c.name, append(latencyMetrics(&got.latency),
				unitValue{"requests/s", float64(got.latency.total) / b.window.Seconds()},
				unitValue{"events/s", got.events}, unitValue{"blocks/s", got.blocks}, unitValue{"short", float64(got.short)})...)
			if got.short > 0 {
				return fmt.Errorf("%s: %d answers were not as deep as what is held", c.name, got.short)
			}
		}
	}
	return nil
}

// measureAfterEviction removes a share of the blocks, anywhere, and measures again.
func (b *setupBench) measureAfterEviction() error {
	b.clusterSetup.evictShare(b.evictEvery, func(w int, seqs []kv.SeqHash) {
		b.table.removeSeqs(w, seqs)
		b.prefix.removeSeqs(w, seqs)
		for _, seq := range seqs {
			b.truth.removeHolder(w, seq)
		}
	})
	if err := b.compareWithOracle("Match-after-eviction"); err != nil {
		return err
	}
	if err := b.measureRates("Lookup-after-eviction", 1); err != nil {
		return err
	}
	return b.measureLatencies("Latency-after-eviction", 1)
}

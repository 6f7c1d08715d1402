package rates

import (
	"fmt"
	"math/bits"
)

// lengthTable learns the lengths of answers, by client. Clients beyond maxClients are not told apart.
type lengthTable struct {
	all     lengthHistogram
	clients map[string]*lengthHistogram
	least   int // answers of a client before its own lengths count
}

const (
	maxClients = 1024
	maxName    = 256 // bytes of a client's name
	ownAnswers = 10
	// lengthForget makes the last 100 answers count.
	lengthForget = 0.99
	// Each power of two is divided into perOctave buckets, so a bucket is at most 19 % wide.
	perOctave     = 4
	lengthBuckets = 27 * perOctave
)

// lengthHistogram counts answers by length; earlier ones count less.
type lengthHistogram struct {
	answers, tokens float64 // decayed
	seen            int
	counts          [lengthBuckets]float64
}

func (t *lengthTable) setPrior(tokens int) {
	t.clients, t.least = map[string]*lengthHistogram{}, ownAnswers
	t.all.addLength(tokens)
}

func (t *lengthTable) addLength(client string, tokens int) {
	t.all.addLength(tokens)
	if client == "" || len(client) > maxName {
		return
	}
	h := t.clients[client]
	if h == nil {
		if len(t.clients) == maxClients {
			return
		}
		h = &lengthHistogram{}
		t.clients[client] = h
	}
	h.addLength(tokens)
}

// of returns the client's histogram, or the one of all.
func (t *lengthTable) of(client string) *lengthHistogram {
	if h := t.clients[client]; h != nil && h.seen >= t.least {
		return h
	}
	return &t.all
}

func (t *lengthTable) mean(client string) float64 {
	h := t.of(client)
	return h.tokens / h.answers
}

func (t *lengthTable) quantile(client string, q float64) float64 {
	h := t.of(client)
	left := float64(min(max(q, 0), 1) * h.answers)
	last := 0
	for i, n := range h.counts {
		if n == 0 {
			continue
		}
		last = i
		if left -= n; left <= 0 {
			break
		}
	}
	return bucketMiddle(last)
}

func (h *lengthHistogram) addLength(tokens int) {
	for i := range h.counts {
		h.counts[i] = float64(h.counts[i] * lengthForget)
	}
	h.answers = float64(h.answers*lengthForget) + 1
	h.tokens = float64(h.tokens*lengthForget) + float64(tokens)
	h.counts[bucketOf(tokens)]++
	h.seen = min(h.seen+1, ownAnswers)
}

// bucketOf returns the bucket of a length, which is at least 1: the octave, and the two bits after the first.
func bucketOf(tokens int) int {
	octave := bits.Len(uint(tokens)) - 1
	part := (tokens << 2 >> octave) & (perOctave - 1)
	return min(octave*perOctave+part, lengthBuckets-1)
}

// bucketMiddle returns the length in the middle of a bucket.
func bucketMiddle(at int) float64 {
	octave, part := at/perOctave, at%perOctave
	low := float64(float64(uint64(1)<<octave) * (1 + float64(part)/perOctave))
	width := float64(uint64(1)<<octave) / perOctave
	if width <= 1 {
		return low
	}
	return low + width/2
}

func (t *lengthTable) check() error {
	if t.all.answers <= 0 || len(t.clients) > maxClients {
		return fmt.Errorf("rates: check: lengths of %g answers, %d clients", t.all.answers, len(t.clients))
	}
	return nil
}

package pool

import (
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// The pools of tests: blocks of four tokens, which take two chunks and a part of a third one.
const (
	testTokens     = 4
	testTokenBytes = 2*ChunkBytes/testTokens + 40
	testBlockBytes = testTokens * testTokenBytes
	testGeneration = 0x9e3779b97f4a7c15
	testLease      = time.Second
)

var testConfig = Config{BlockTokens: testTokens, TokenBytes: testTokenBytes, Layout: "l", Type: "float32", Numerics: "n", Lease: testLease}

// smallConfig is for tests with many blocks.
var smallConfig = Config{BlockTokens: testTokens, TokenBytes: 24, Layout: "l", Type: "float32", Numerics: "n", Lease: testLease}

// newMemory returns memory for n blocks.
func newMemory(t testing.TB, cfg Config, n int) []byte {
	t.Helper()
	_, size := layOut(uint64(n), uint64(cfg.BlockTokens), uint64(cfg.BlockTokens*cfg.TokenBytes))
	return make([]byte, size)
}

func mapBytes(t testing.TB, b []byte) Memory {
	t.Helper()
	m, err := MapBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// newPool formats memory for n blocks.
func newPool(t testing.TB, cfg Config, n int) []byte {
	t.Helper()
	b := newMemory(t, cfg, n)
	if err := Format(mapBytes(t, b), cfg, testGeneration); err != nil {
		t.Fatal(err)
	}
	return b
}

// join opens a pool as a worker, at time 0.
func join(t testing.TB, m Memory, cfg Config, worker kv.WorkerID) *View {
	t.Helper()
	return joinAt(t, 0, m, cfg, worker)
}

func joinAt(t testing.TB, now kv.Mono, m Memory, cfg Config, worker kv.WorkerID) *View {
	t.Helper()
	p, err := Open(m, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Join(now, kv.Worker{ID: worker, Rank: 1}); err != nil {
		t.Fatal(err)
	}
	return p
}

// contentOf returns the content of block n of a sequence.
func contentOf(sequence, n int) *Content {
	c := &Content{Index: uint32(n), Salt: DigestSalt(kv.Salt{Namespace: "s"})}
	for i := range testTokens {
		c.Tokens = append(c.Tokens, kv.Token(1000*sequence+10*n+i))
	}
	c.Hash = kv.BlockHash(splitmix.Mix(uint64(sequence)<<32 + uint64(n)))
	c.Name = kv.SeqHash(splitmix.Mix(uint64(c.Hash)))
	if n%2 == 1 {
		c.Parent = contentOf(sequence, n-1).Name
		c.ParentIdentity = kv.Digest{byte(n)}
		c.Media = []kv.Media{{Hash: 7, Start: 1, End: 5, Digest: kv.Digest{byte(n)}}}
	}
	return c
}

func labelOf(c *Content) kv.MoELabel {
	return kv.MoELabel{Has: kv.HasExpert | kv.HasGroup, Layer: 3, Expert: uint32(c.Hash), Group: 5}
}

// dataOf returns the K and V of a block.
func dataOf(c *Content, size int) []byte {
	b := make([]byte, (size+7)/8*8)
	random := splitmix.Source(c.Name)
	for at := 0; at < len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], random.Next())
	}
	return b[:size]
}

// writeAll writes the chunks of a reserved block.
func writeAll(p *View, now kv.Mono, w *BlockWriter, data []byte) error {
	for {
		at, size := p.NextChunk(w)
		if size == 0 {
			return nil
		}
		if err := p.Write(now, w, data[at:at+size]); err != nil {
			return err
		}
	}
}

// publish puts a block into a pool.
func publish(p *View, now kv.Mono, c *Content) ([]EvictedBlock, error) {
	w, evicted, err := p.Reserve(c, labelOf(c), nil)
	if err == nil {
		err = writeAll(p, now, &w, dataOf(c, p.BlockBytes()))
	}
	if err == nil {
		err = p.Publish(&w)
	}
	return evicted, err
}

func mustPublish(t testing.TB, p *View, c *Content) []EvictedBlock {
	t.Helper()
	evicted, err := publish(p, 0, c)
	if err != nil {
		t.Fatal(err)
	}
	return evicted
}

var errWrong = errors.New("wrong bytes")

// read reads a block, and reports whether it is there. Wrong bytes are an error.
func read(p *View, c *Content) (bool, error) {
	f, ok := p.Acquire(c)
	if !ok {
		return false, nil
	}
	defer p.Release(f.Ref)
	dst := make([]byte, p.BlockBytes())
	if err := p.Read(f.Ref, dst); err != nil {
		return false, nil
	}
	if string(dst) != string(dataOf(c, len(dst))) || f.Label != labelOf(c) {
		return true, errWrong
	}
	return true, nil
}

// scrub reads all blocks, which evicts damaged ones.
func scrub(t testing.TB, p *View, all []*Content) (found int) {
	t.Helper()
	for _, c := range all {
		ok, err := read(p, c)
		if err != nil {
			t.Errorf("block %x: %v", c.Name, err)
		}
		if ok {
			found++
		}
	}
	return found
}

// reclaim lets a lease pass, as p sees it, in which p itself renews.
func reclaim(t testing.TB, p *View, now kv.Mono) (kv.Mono, []kv.Worker) {
	t.Helper()
	dead := p.Reclaim(now, nil)
	now = now.Add(testLease)
	if err := p.Renew(now); err != nil {
		t.Fatal(err)
	}
	return now, p.Reclaim(now, dead)
}

// stepMemory is the memory of a simulated process, which runs as a coroutine: the test decides after which access to the
// memory it goes on, and whether it does. Copies have several steps.
type stepMemory struct {
	mappedBytes
	left  int         // accesses until the process is halted
	loads bool        // whether loads are steps
	halt  func() bool // reports whether the process goes on
	steps int
}

// errKilled unwinds a process which was killed.
var errKilled = errors.New("killed")

func (m *stepMemory) step() {
	m.steps++
	for m.left == 0 {
		if !m.halt() {
			panic(errKilled)
		}
	}
	m.left--
}

func (m *stepMemory) Load(at int) uint64 {
	if m.loads {
		m.step()
	}
	return m.mappedBytes.Load(at)
}

func (m *stepMemory) Store(at int, v uint64) {
	m.step()
	m.mappedBytes.Store(at, v)
}

func (m *stepMemory) CompareAndSwap(at int, old, v uint64) bool {
	m.step()
	return m.mappedBytes.CompareAndSwap(at, old, v)
}

func (m *stepMemory) CopyIn(at int, src []byte) error {
	for piece := (len(src) + 2) / 3; len(src) > 0; {
		m.step()
		n := min(len(src), piece)
		copy(m.mappedBytes[at:at+n], src)
		at, src = at+n, src[n:]
	}
	return nil
}

func (m *stepMemory) CopyOut(dst []byte, at int) error {
	for piece := (len(dst) + 2) / 3; len(dst) > 0; {
		if m.loads {
			m.step()
		}
		n := min(len(dst), piece)
		copy(dst[:n], m.mappedBytes[at:])
		at, dst = at+n, dst[n:]
	}
	return nil
}

// process is a simulated process.
type process struct {
	mem  *stepMemory
	next func() (struct{}, bool)
	kill func()
}

// startProcess returns a process which has not begun.
func startProcess(b []byte, body func(Memory)) *process {
	q := &process{mem: &stepMemory{mappedBytes: b, loads: true}}
	q.next, q.kill = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != errKilled {
				panic(r)
			}
		}()
		q.mem.halt = func() bool { return yield(struct{}{}) }
		body(Memory{Size: len(b), Words: q.mem, Data: q.mem})
	})
	return q
}

// run lets the process do n accesses, and reports whether it has not ended.
func (q *process) run(n int) bool {
	q.mem.left = n
	_, ok := q.next()
	return ok
}

// toEnd lets the process run to its end.
func (q *process) toEnd() {
	for q.run(math.MaxInt) {
	}
}

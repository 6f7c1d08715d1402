package pool

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// chainOf returns the contents of the first n blocks of a sequence, whose names follow from their hashes.
func chainOf(sequence, n int) (all []*Content) {
	parent := kv.SeqHash(0)
	for i := range n {
		c := contentOf(sequence, i)
		c.Parent, c.Media, c.ParentIdentity = parent, nil, kv.Digest{byte(i)}
		c.Name = kv.ExtendSeq(parent, c.Index, c.Hash)
		parent = c.Name
		all = append(all, c)
	}
	return all
}

// TestAppendPooled: a walk in parts lists what is pooled, and neither what is in transit or evicted nor an entry which is
// damaged or has a name which does not follow from it.
func TestAppendPooled(t *testing.T) {
	b := newPool(t, smallConfig, 12)
	p := join(t, mapBytes(t, b), smallConfig, 3)
	var want []PooledBlock
	chain := chainOf(1, 6)
	for i, c := range chain {
		w, _, err := p.Reserve(c, labelOf(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			continue // in transit
		}
		if err := writeAll(p, 0, &w, dataOf(c, p.BlockBytes())); err != nil {
			t.Fatal(err)
		}
		if err := p.Publish(&w); err != nil {
			t.Fatal(err)
		}
		switch i {
		case 3: // evicted
			f, _ := p.Acquire(c)
			p.Release(f.Ref)
			p.evictDamaged(f.Ref.Entry, f.Ref.Generation, f.Ref.block)
		case 4: // damaged
			f, _ := p.Acquire(c)
			b[p.lay.entryAt(f.Ref.Entry)+recordAt+recordHead]++ // of a token
			p.Release(f.Ref)
		default:
			want = append(want, PooledBlock{
				Name: c.Name, Parent: c.Parent, Hash: c.Hash, Index: c.Index, Label: labelOf(c), Mover: kv.Worker{ID: 3, Rank: 1},
			})
		}
	}
	forged := contentOf(2, 0) // its name is another
	w, _, err := p.Reserve(forged, kv.MoELabel{}, nil)
	if err == nil {
		err = writeAll(p, 0, &w, dataOf(forged, p.BlockBytes()))
	}
	if err == nil {
		err = p.Publish(&w)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 5, p.Blocks(), 1000} {
		var got []PooledBlock
		for from := 0; from < p.Blocks(); {
			got, from = p.AppendPooled(got, from, n)
		}
		slices.SortFunc(got, func(a, b PooledBlock) int { return int(a.Index) - int(b.Index) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("in parts of %d (-want +got):\n%s", n, diff)
		}
	}
}

// TestAppendOwners: owners are listed from Join until they leave or are reclaimed.
func TestAppendOwners(t *testing.T) {
	m := mapBytes(t, newPool(t, smallConfig, 4))
	expect := func(when string, want ...kv.Worker) {
		t.Helper()
		p, err := Open(m, smallConfig)
		if err != nil {
			t.Fatal(err)
		}
		got := p.AppendOwners(nil)
		slices.SortFunc(got, kv.Worker.Compare)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	expect("at first")
	a, c := join(t, m, smallConfig, 9), join(t, m, smallConfig, 5)
	expect("with two", kv.Worker{ID: 5, Rank: 1}, kv.Worker{ID: 9, Rank: 1})
	a.Leave()
	expect("without one", kv.Worker{ID: 5, Rank: 1})
	a.Reclaim(0, nil)
	if dead := a.Reclaim(kv.Mono(2*testLease), nil); !slices.Equal(dead, []kv.Worker{c.worker}) {
		t.Errorf("%v are dead", dead)
	}
	expect("without any")
}

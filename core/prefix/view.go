package prefix

import (
	"slices"

	"penstock/core/kv"
)

// lookupView is what a lookup needs to know about workers and pools. It is replaced when one is added,
// removed, hidden or shown, which is rare compared to block events.
type lookupView struct {
	names   []kv.Worker // by number
	order   []uint32    // numbers in use, by ascending worker
	rank    []uint32    // by number: its index in order
	visible []uint64    // numbers in use which are not hidden
	// levels is one more than the slowest tier with blocks.
	levels int
	// access has for each pool the numbers of the workers which can attach it.
	access []numberSet
	// reused counts how often a number, of a worker or a pool, was reassigned. A lookup which started with
	// another count may have seen both owners under the number.
	reused uint64
}

// workerState is one worker's part of the index.
type workerState struct {
	id     kv.Worker
	known  bool // the number is in use
	hidden bool
	held   int // blocks, on any tier
	pages  pageSet
}

// numberOf returns w's dense number, and assigns one if it has none. Readers can resolve the number before
// anything is stored under it.
func (x *Index) numberOf(w kv.Worker) uint32 {
	if n, ok := x.numbers[w]; ok {
		return n
	}
	x.addWorkers([]kv.Worker{w})
	return x.numbers[w]
}

// addWorkers assigns numbers to new workers, each named once. Readers see all of them at once: one call takes
// time proportional to the number of known workers, however many are added.
func (x *Index) addWorkers(workers []kv.Worker) {
	v := *x.view.Load()
	if len(x.freeNumbers) > 0 {
		v.names = slices.Clone(v.names)
		v.reused++
	}
	numbers := make([]uint32, 0, len(workers))
	for _, w := range workers {
		n := uint32(len(x.workers))
		if last := len(x.freeNumbers) - 1; last >= 0 {
			n, x.freeNumbers = x.freeNumbers[last], x.freeNumbers[:last]
			v.names[n] = w
		} else {
			x.workers = append(x.workers, workerState{})
			v.names = append(v.names, w) // after the end of what older views have
		}
		x.workers[n] = workerState{id: w, known: true}
		x.numbers[w] = n
		numbers = append(numbers, n)
	}
	v.order = v.orderWith(numbers)
	x.grantAccess(&v, workers)
	x.publishView(&v)
}

// orderWith returns the order with additional numbers, whose names are already set.
func (v *lookupView) orderWith(numbers []uint32) []uint32 {
	order := slices.Clone(v.order)
	if len(numbers) == 1 {
		name := v.names[numbers[0]]
		at, _ := slices.BinarySearchFunc(order, name, func(n uint32, w kv.Worker) int { return v.names[n].Compare(w) })
		return slices.Insert(order, at, numbers[0])
	}
	order = append(order, numbers...)
	slices.SortFunc(order, func(a, b uint32) int { return v.names[a].Compare(v.names[b]) })
	return order
}

// grantAccess gives new workers access to the pools which list them.
func (x *Index) grantAccess(v *lookupView, workers []kv.Worker) {
	cloned := false
	for i := range x.pools {
		var gained []uint32
		for _, w := range workers {
			if _, ok := slices.BinarySearchFunc(x.pools[i].access, w, kv.Worker.Compare); ok {
				gained = append(gained, x.numbers[w])
			}
		}
		if len(gained) == 0 {
			continue
		}
		if !cloned {
			v.access, cloned = slices.Clone(v.access), true
		}
		for n := range v.access[i].eachNumber() {
			gained = append(gained, n)
		}
		v.access[i] = setOf(gained)
	}
}

// removeWorkers frees the numbers of workers which hold nothing.
func (x *Index) removeWorkers(numbers ...uint32) {
	v := *x.view.Load()
	v.access = slices.Clone(v.access)
	for _, n := range numbers {
		for i := range v.access {
			v.access[i] = v.access[i].withoutNumber(n)
		}
		delete(x.numbers, x.workers[n].id)
		x.workers[n] = workerState{}
		x.freeNumbers = append(x.freeNumbers, n)
	}
	v.order = slices.DeleteFunc(slices.Clone(v.order), func(n uint32) bool { return !x.workers[n].known })
	if len(x.numbers) == 0 {
		x.workers, x.freeNumbers, v.names = nil, nil, nil
		v.reused++ // all numbers are reassigned
	}
	x.publishView(&v)
}

// publishView derives ranks and visibility from the order and the workers, and publishes v.
func (x *Index) publishView(v *lookupView) {
	v.rank = make([]uint32, len(x.workers))
	for i, n := range v.order {
		v.rank[n] = uint32(i)
	}
	x.setVisible(v)
	x.view.Store(v)
}

// setVisible derives which workers are visible.
func (x *Index) setVisible(v *lookupView) {
	v.visible = make([]uint64, (len(x.workers)+63)/64)
	for n := range x.workers {
		if w := &x.workers[n]; w.known && !w.hidden {
			v.visible[n/64] |= 1 << (n % 64)
		}
	}
}

// publishLevels publishes how many tiers lookups have to consider, if the number changed.
func (x *Index) publishLevels() {
	levels := 1
	for t := range kv.Tiers {
		if x.sizes.onTier[t] > 0 {
			levels = t + 1
		}
	}
	if x.sizes.pooled > 0 {
		levels = kv.Tiers
	}
	if old := x.view.Load(); old.levels != levels {
		v := *old
		v.levels = levels
		x.view.Store(&v)
	}
}

// HideWorker excludes w from all answers until ShowWorker: its blocks are in doubt, but are kept, and
// ApplyEvent goes on. Dropping a worker also ends hiding it.
func (x *Index) HideWorker(w kv.Worker) { x.setHidden(x.numberOf(w), true) }

// ShowWorker ends HideWorker.
func (x *Index) ShowWorker(w kv.Worker) {
	if n, ok := x.numbers[w]; ok {
		x.setHidden(n, false)
	}
}

func (x *Index) setHidden(n uint32, hidden bool) {
	if x.workers[n].hidden == hidden {
		return
	}
	x.workers[n].hidden = hidden
	v := *x.view.Load()
	x.setVisible(&v)
	x.view.Store(&v)
}

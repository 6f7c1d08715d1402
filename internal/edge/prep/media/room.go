package media

import (
	"container/list"
	"context"
	"slices"
	"sync"

	"penstock/core/kv"
	"penstock/core/media"
)

// room is memory that requests share, in bytes.
type room struct {
	limit int64
	mu    struct {
		sync.Mutex
		used    int64
		waiting []*share // in the order in which they came; each is one of the slots
	}
}

// share is somebody's wait for n bytes; granted is closed when they are there.
type share struct {
	n       int64
	granted chan struct{}
}

// wait reserves n bytes, or all there are if that is less, after those who waited before. It returns how
// many it reserved.
func (r *room) wait(ctx context.Context, n int64) (int64, error) {
	s := &share{n: min(n, r.limit), granted: make(chan struct{})}
	r.mu.Lock()
	r.mu.waiting = append(r.mu.waiting, s)
	r.grant()
	r.mu.Unlock()
	select {
	case <-s.granted:
		return s.n, nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.mu.waiting, s); i >= 0 {
		r.mu.waiting = slices.Delete(r.mu.waiting, i, i+1)
	} else { // granted at the same moment
		r.mu.used -= s.n
	}
	r.grant()
	return 0, ctx.Err()
}

func (r *room) give(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.used -= n
	r.grant()
}

// grant serves the first who wait, as far as there is room.
func (r *room) grant() {
	for len(r.mu.waiting) > 0 && r.mu.used+r.mu.waiting[0].n <= r.limit {
		s := r.mu.waiting[0]
		r.mu.waiting = r.mu.waiting[1:]
		r.mu.used += s.n
		close(s.granted)
	}
}

// inUse is how much is reserved.
func (r *room) inUse() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.used
}

// maxSeen is how many files are remembered by what they show: a hundred bytes each.
const maxSeen = 1 << 16

// seen remembers what files show by their contents, those used last: decoding is what takes long.
type seen struct {
	limit int
	mu    struct {
		sync.Mutex
		order *list.List // of *sight, the latest used first
		by    map[kv.Digest]*list.Element
	}
}

// sight is what a file was found to show.
type sight struct {
	content kv.Digest
	key     media.Key
	size    media.Size
}

func newSeen(limit int) *seen {
	s := &seen{limit: limit}
	s.mu.order, s.mu.by = list.New(), map[kv.Digest]*list.Element{}
	return s
}

func (s *seen) get(content media.Key, kind media.Kind) (media.Key, media.Size, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.by[digestOf(content, kind)]
	if e == nil {
		return media.Key{}, media.Size{}, false
	}
	s.mu.order.MoveToFront(e)
	v := e.Value.(*sight)
	return v.key, v.size, true
}

func (s *seen) put(content media.Key, kind media.Kind, key media.Key, size media.Size) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := digestOf(content, kind)
	if e := s.mu.by[d]; e != nil {
		s.mu.order.MoveToFront(e)
		return
	}
	s.mu.by[d] = s.mu.order.PushFront(&sight{d, key, size})
	if s.mu.order.Len() > s.limit {
		last := s.mu.order.Back()
		s.mu.order.Remove(last)
		delete(s.mu.by, last.Value.(*sight).content)
	}
}

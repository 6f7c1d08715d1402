package bus

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
)

// MemArchive is an archive within one process.
type MemArchive struct {
	mu struct {
		sync.Mutex
		objects map[string][]byte
		held    map[string]bool
		tokens  map[string]uint64 // the most recent token, by lock
	}
}

var _ Archive = (*MemArchive)(nil)

// NewMemArchive returns an archive without objects.
func NewMemArchive() *MemArchive {
	a := &MemArchive{}
	a.mu.objects = map[string][]byte{}
	a.mu.held = map[string]bool{}
	a.mu.tokens = map[string]uint64{}
	return a
}

// Put implements Archive.
func (a *MemArchive) Put(ctx context.Context, name string, data []byte) error {
	if err := cmp.Or(ctx.Err(), checkObject(name, len(data))); err != nil {
		return err
	}
	data = bytes.Clone(data)
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.mu.objects[name]; !ok && len(a.mu.objects) == MaxObjects {
		return errArchiveFull(name)
	}
	a.mu.objects[name] = data
	return nil
}

// Get implements Archive.
func (a *MemArchive) Get(ctx context.Context, name string) ([]byte, error) {
	if err := cmp.Or(ctx.Err(), checkName(name)); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	data, ok := a.mu.objects[name]
	if !ok {
		return nil, errObjectNotFound(name)
	}
	return bytes.Clone(data), nil
}

// List implements Archive.
func (a *MemArchive) List(ctx context.Context, prefix string) ([]ArchiveObject, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []ArchiveObject
	for name, data := range a.mu.objects {
		if strings.HasPrefix(name, prefix) {
			list = append(list, ArchiveObject{name, uint64(len(data))})
		}
	}
	slices.SortFunc(list, func(a, b ArchiveObject) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Delete implements Archive.
func (a *MemArchive) Delete(ctx context.Context, name string) error {
	if err := cmp.Or(ctx.Err(), checkName(name)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.mu.objects, name)
	return nil
}

// Lock implements Archive. Locks do not expire, because a holder cannot crash without the store.
func (a *MemArchive) Lock(ctx context.Context, name string, held func(context.Context, uint64) error) error {
	if err := cmp.Or(ctx.Err(), checkName(name)); err != nil {
		return err
	}
	token, ok := a.acquireLock(name)
	if !ok {
		return errLockHeld(name)
	}
	defer a.releaseLock(name)
	return held(ctx, token)
}

func (a *MemArchive) acquireLock(name string) (token uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.held[name] {
		return 0, false
	}
	a.mu.held[name] = true
	a.mu.tokens[name]++
	return a.mu.tokens[name], true
}

func (a *MemArchive) releaseLock(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.held[name] = false
}

// Package pool maps the memory of a pool of KV blocks: a file, a file in /dev/shm, or a DAX device, which several
// processes have. What is in it is core/pool's.
//
// A [File] is safe for concurrent use. Memory which is not there any more, such as that of a truncated file, is an error of
// the block, or of the pool if its directory is concerned, and no crash.
package pool

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/pool"
)

// SplitSpec splits ID=PATH:SIZE, as a user names a pool. The size is text still. It returns *fault.Error of code Invalid.
func SplitSpec(text string) (id kv.PoolID, path, size string, err error) {
	before, rest, ok := strings.Cut(text, "=")
	colon := strings.LastIndexByte(rest, ':')
	n, bad := strconv.ParseUint(before, 10, 32)
	if !ok || bad != nil || colon < 1 || colon == len(rest)-1 {
		return 0, "", "", fault.New(fault.Invalid, "%.200q is not a pool: write ID=PATH:SIZE, for example 0=/dev/shm/pool:2GiB", text)
	}
	return kv.PoolID(n), rest[:colon], rest[colon+1:], nil
}

// leavePatience is how long Run waits at its end for a pool which does not answer.
const leavePatience = time.Second

// Run keeps this process an owner of the pool until ctx ends: it renews the lease, and takes back what dead owners had. It
// calls changed, which may be nil, with the owners when they have changed since the last call, and with the workers of dead
// owners. It returns nil when ctx ends, and otherwise why the pool is lost, or why the worker cannot join it. The pool is
// left in either case; if it does not answer for a second after the end of ctx, it is left when it answers.
func (f *File) Run(ctx context.Context, worker kv.Worker, changed func(owners, dead []kv.Worker)) error {
	ended := make(chan error, 1)
	go func() { ended <- f.keepOwner(ctx, worker, changed) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(leavePatience):
		return nil
	}
}

// keepOwner is Run, and waits for the pool.
func (f *File) keepOwner(ctx context.Context, worker kv.Worker, changed func(owners, dead []kv.Worker)) error {
	defer func() {
		_ = f.Use(func(p *pool.View, _ kv.Mono) error { // a pool which is lost cannot be left
			p.Leave()
			return nil
		})
	}()
	var lease time.Duration
	var known []kv.Worker
	for {
		var owners, dead []kv.Worker
		err := f.Use(func(p *pool.View, now kv.Mono) error {
			lease = p.Lease()
			if err := p.Renew(now); err != nil {
				if !errors.Is(err, pool.ErrEnded) {
					return err
				}
				if err := p.Join(now, worker); err != nil {
					return err
				}
			}
			dead = p.Reclaim(now, nil)
			owners = p.AppendOwners(nil)
			return nil
		})
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		slices.SortFunc(owners, kv.Worker.Compare)
		if changed != nil && (len(dead) > 0 || !slices.Equal(owners, known)) {
			changed(owners, dead)
		}
		known = owners
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lease / 5):
		}
	}
}

//go:build !linux

package xfer

import "context"

// Allocate fails: there is no shared memory on this system.
func (r *SharedRegion) Allocate(int) ([]byte, error) { return nil, errNoSharedMemory }

// Lock fails: there is no memory.
func (r *SharedRegion) Lock() error { return errNoSharedMemory }

// Close does nothing: there is no memory.
func (r *SharedRegion) Close() error { return nil }

// Run waits until ctx ends: no other process can read the region.
func (r *SharedRegion) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// OpenRegion fails: there is no shared memory on this system.
func OpenRegion(context.Context, string) (*RegionView, error) { return nil, errNoSharedMemory }

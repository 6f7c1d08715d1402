//go:build !linux

package pool

import (
	"context"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/pool"
)

// File is the memory of a pool. Only Linux has it.
type File struct{}

// Open is Unimplemented.
func Open(context.Context, string, int, pool.Config) (*File, error) {
	return nil, fault.New(fault.Unimplemented, "pools of KV blocks in shared memory need Linux")
}

// Close does nothing.
func (f *File) Close() {}

// Use is Unimplemented.
func (f *File) Use(func(*pool.View, kv.Mono) error) error {
	return fault.New(fault.Unimplemented, "pools of KV blocks in shared memory need Linux")
}

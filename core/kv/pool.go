package kv

// PoolID names a pool of memory that several workers can attach, such as CXL memory.
type PoolID uint32

// PoolState is where a block is on its way through a pool.
type PoolState uint8

// The states. The zero value is none of them.
const (
	// LocalGPU: the block is in a worker's own memory only. With a pool and no blocks:
	// nothing that the worker put into that pool is there.
	LocalGPU PoolState = iota + 1
	// InTransit: a worker is copying the block into the pool. Nobody can attach it yet.
	InTransit
	// Pooled: the block is in the pool, for all that have access to it.
	Pooled
	// Evicted: the block left the pool; that it was there is remembered for a while. With a
	// pool and no blocks: the pool is empty.
	Evicted
)

var poolStateNames = [...]string{"state?", "local_gpu", "in_transit", "cxl_pooled", "evicted"}

// String returns the state's name as events print it.
func (s PoolState) String() string {
	if int(s) < len(poolStateNames) {
		return poolStateNames[s]
	}
	return poolStateNames[0]
}

// Move is the part of an event that says how blocks changed their state in a pool.
type Move struct {
	To PoolState
	// Pool means something if HasPool; without, the pool is the one that the block was
	// last said to be on its way to.
	Pool    PoolID
	HasPool bool
	// Access are the workers that can attach the pool, nil if the event does not say.
	// They are those of the pool, not of the blocks: the last event that says them counts.
	Access []Worker
}

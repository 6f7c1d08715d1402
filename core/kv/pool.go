package kv

// PoolID identifies a memory pool which several workers can attach, such as CXL memory.
type PoolID uint32

// PoolState is the state of a block with respect to a pool.
type PoolState uint8

// The states. The zero value is none of them.
const (
	// LocalGPU: the block is in a worker's own memory only. With a pool and no blocks: the pool has nothing
	// which the worker put there.
	LocalGPU PoolState = iota + 1
	// InTransit: a worker is copying the block into the pool. No worker can attach it yet.
	InTransit
	// Pooled: the block is in the pool, for all workers with access to it.
	Pooled
	// Evicted: the block was evicted from the pool; that it was there is remembered for a while. With a pool
	// and no blocks: the pool is empty.
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

// PoolMove is the part of an event which says how blocks changed their state in a pool.
type PoolMove struct {
	To PoolState
	// Pool is valid if HasPool; otherwise the pool is the one to which the block was last reported to be on
	// its way.
	Pool    PoolID
	HasPool bool
	// Access are the workers which can attach the pool, nil if the event does not list them. They apply to
	// the pool, not to the blocks: the last event with a list counts.
	Access []Worker
}

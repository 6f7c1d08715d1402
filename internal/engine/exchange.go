package engine

import (
	"context"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/pool"
)

// BlockProvider is an engine whose KV blocks can be read, such as that of a prefill worker.
type BlockProvider interface {
	Engine
	// BlockLayout says how the engine's blocks are read. It does not change.
	BlockLayout() KVLayout
	// PrefillBlocks computes the tokens of a request's first open choice, Generated included, and draws nothing. It then
	// holds their blocks and calls use. They are released when use returns, and PrefillBlocks returns what use returned. Its
	// own errors are Generate's. ctx bounds how long the blocks can be held; use must return soon after its end.
	PrefillBlocks(ctx context.Context, req *Request, use func(HeldBlocks) error) error
}

// HeldBlocks are the blocks of a computed prompt, which are not given to others until use of PrefillBlocks returns.
type HeldBlocks interface {
	// Cached returns how many of the prompt's tokens the engine's cache had.
	Cached() int
	// ReadBlocks writes to dst the bytes of the blocks from first to below last of the prompt, one after another. dst has
	// as many bytes as they have. It returns ctx's error if ctx ends before.
	ReadBlocks(ctx context.Context, dst []byte, first, last int) error
}

// BlockReceiver is an engine which takes KV blocks of requests from other engines: that of a decode worker.
type BlockReceiver interface {
	Engine
	// BlockLayout says how the engine's blocks are read. It does not change.
	BlockLayout() KVLayout
	// CountCached returns how many of the first tokens of a request, Generated included, are cached now, or in a pool from
	// which the engine fetches blocks: whole blocks, and never the last token.
	CountCached(ctx context.Context, req *Request) (int, error)
	// OpenImport prepares to serve a request, the tokens of whose first open choice another engine computes up to
	// the last block boundary before their last token. It starts nothing.
	OpenImport(req *Request, w ImportWatcher) (BlockImport, error)
}

// ImportWatcher is told about the blocks which are reserved for an import. The engine's loop calls it; its methods must
// not wait.
type ImportWatcher interface {
	// BlocksReserved says that blocks are reserved for all tokens, and that the first held ones are in them: what a pool
	// has is there then.
	BlocksReserved(held int)
	// BlocksReclaimed says that the engine has taken the reservation for another request. The import is over, and the
	// engine computes the tokens. When BlocksReclaimed returns, nothing may write to the blocks any more.
	BlocksReclaimed()
}

// BlockImport is a request whose prompt another engine computes. Its end is the return of Generate: that of its context
// frees what is reserved.
type BlockImport interface {
	// Generate serves the request as Engine.Generate does, and is called once. It reserves blocks, and computes nothing
	// before the import is over. Meanwhile neither the media are encoded which are before the last block boundary, nor
	// is a request with media accepted.
	Generate(ctx context.Context, sink func(*Delta) error) error
	// ImportBlocks takes the blocks of the tokens from held of BlocksReserved up to the last block boundary before
	// their last token. cached is how many tokens of the prompt the other engine's cache had; the request reports at least
	// as many. It returns when the tokens are in the cache as if they were computed. An error means that they are not:
	// Conflict if the layouts differ or nothing is reserved, Invalid for other blocks. b must not change before it returns.
	ImportBlocks(ctx context.Context, b *BlockData, cached int) error
	// PrefillLocal ends the import, if it is not over: the engine computes the tokens, in the reserved blocks if there are
	// any. It does not wait. Nothing may write to the blocks any more.
	PrefillLocal()
}

// BlockData are the bytes of consecutive blocks of a prompt, each of Layout.BlockBytes.
type BlockData struct {
	// Layout is that of the engine which has computed them.
	Layout KVLayout
	// First is the index of the first of them in the prompt.
	First int
	Bytes []byte
}

// BlockRange returns which blocks of a prompt have the tokens from start to end: those from first to below last.
func (l *KVLayout) BlockRange(start, end int) (first, last int) {
	return start / l.BlockSize, (end + l.BlockSize - 1) / l.BlockSize
}

// Metadata returns what a worker with such blocks states in its discovery record, without its epoch and transports.
func (l *KVLayout) Metadata() disagg.Metadata {
	return disagg.Metadata{BlockSize: l.BlockSize, TokenBytes: l.BlockBytes / max(l.BlockSize, 1), Layout: l.Order, Type: l.Type.String(), Numerics: l.Numerics}
}

// PoolConfig returns what a pool of such blocks is made for, with the default lease.
func (l *KVLayout) PoolConfig() pool.Config {
	m := l.Metadata()
	return pool.Config{BlockTokens: m.BlockSize, TokenBytes: m.TokenBytes, Layout: m.Layout, Type: m.Type, Numerics: m.Numerics}
}

// CheckWriter returns nil if an engine whose blocks have layout l can take blocks of an engine with layout from.
func (l *KVLayout) CheckWriter(from *KVLayout) error {
	writer, owner := from.Metadata(), l.Metadata()
	here := []disagg.TransportAddress{{Name: "none"}} // the bytes come somehow
	for _, m := range [...]*disagg.Metadata{&writer, &owner} {
		m.Epoch, m.Transports = 1, here
		if err := m.Validate(); err != nil {
			return err
		}
	}
	return disagg.CheckExchange(&writer, &owner)
}

// CheckImport returns nil if an engine whose blocks have layout l can take the tokens from start to end of b.
func (l *KVLayout) CheckImport(b *BlockData, start, end int) error {
	if err := l.CheckWriter(&b.Layout); err != nil {
		return err
	}
	if b.Layout.BlockBytes%b.Layout.BlockSize != 0 {
		return fault.New(fault.Invalid, "blocks of %d tokens and %d bytes", b.Layout.BlockSize, b.Layout.BlockBytes)
	}
	first, last := b.Layout.BlockRange(start, end)
	if have := len(b.Bytes) / b.Layout.BlockBytes; b.First < 0 || b.First > first || b.First+have < last || have*b.Layout.BlockBytes != len(b.Bytes) {
		return fault.New(fault.Invalid, "%d bytes of blocks from block %d on are not the blocks %d to %d, of %d bytes each", len(b.Bytes), b.First, first, last, b.Layout.BlockBytes)
	}
	return nil
}

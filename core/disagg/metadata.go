package disagg

import (
	"fmt"
	"slices"

	"penstock/core/fault"
)

// Metadata says how a worker exchanges KV blocks with others (S8). It is part of its discovery record, which other
// workers watch, so that no look-up is made for a request.
type Metadata struct {
	// Epoch is the life of the worker. A reference of another epoch is not used.
	Epoch uint64 `json:"epoch"`
	// Transports are the ways to the worker's memory, the fastest first.
	Transports []TransportAddress `json:"transports"`
	// BlockSize is the number of tokens of a block, and TokenBytes the bytes of one token in all layers.
	BlockSize  int `json:"block_size"`
	TokenBytes int `json:"token_bytes"`
	// Layout names the order of layers, heads and tokens in a block.
	Layout string `json:"layout"`
	// Type is the type of the elements, as checkpoints name it.
	Type string `json:"type"`
	// Numerics names what must be equal for two engines to compute the same bits: weights, kernels, architecture.
	Numerics string `json:"numerics"`
}

// TransportAddress is one way to a worker's memory.
type TransportAddress struct {
	// Name is that of the bulk-transfer plane: mem, shm, tcp, ucx.
	Name string `json:"name"`
	// Scope names the process or the host within which the worker can be reached in this way; "" is anywhere.
	Scope   string `json:"scope,omitempty"`
	Address string `json:"address"`
}

// The limits of Metadata, in transports, tokens and bytes.
const (
	maxTransports = 8
	maxBlockSize  = 1 << 16
	maxTokenBytes = 1 << 30
	maxName       = 4096
)

// Validate reports what is wrong with metadata of another process, as *fault.Error of code Invalid; nil if nothing is.
func (m *Metadata) Validate() error {
	switch {
	case m.Epoch == 0:
		return fault.InvalidParam("epoch", "the epoch is missing")
	case len(m.Transports) == 0 || len(m.Transports) > maxTransports:
		return fault.InvalidParam("transports", "%d transports: between 1 and %d are taken", len(m.Transports), maxTransports)
	case m.BlockSize < 1 || m.BlockSize > maxBlockSize:
		return fault.InvalidParam("block_size", "a block of %d tokens: between 1 and %d are taken", m.BlockSize, maxBlockSize)
	case m.TokenBytes < 1 || m.TokenBytes > maxTokenBytes:
		return fault.InvalidParam("token_bytes", "a token of %d bytes: between 1 and %d are taken", m.TokenBytes, maxTokenBytes)
	case m.Layout == "" || m.Type == "" || m.Numerics == "":
		return fault.InvalidParam("layout", "layout, type and numerics must be named")
	case max(len(m.Layout), len(m.Type), len(m.Numerics)) > maxName:
		return fault.InvalidParam("layout", "names have at most %d bytes", maxName)
	}
	for i, t := range m.Transports {
		if t.Name == "" || max(len(t.Name), len(t.Scope), len(t.Address)) > maxName {
			return fault.InvalidParam("transports", "transport %d: a name, and at most %d bytes for each part, are taken", i, maxName)
		}
	}
	return nil
}

// CheckExchange returns nil if writer can compute blocks for owner and write them into its memory. Otherwise it returns a
// *fault.Error of code Conflict whose message is one sentence: what differs, and what to do. Both must be valid.
//
// Block sizes may differ as long as one is a multiple of the other: the owner converts.
func CheckExchange(writer, owner *Metadata) error {
	differ := func(format string, args ...any) error { return fault.New(fault.Conflict, format, args...) }
	switch {
	case writer.Numerics != owner.Numerics:
		return differ("the prefill worker computes with numerics %.200q and the decode worker with %.200q: run the same model, build, media settings and architecture on both",
			writer.Numerics, owner.Numerics)
	case writer.Type != owner.Type:
		return differ("the KV cache of the prefill worker has elements of type %.40s and that of the decode worker of type %.40s: give both the same KV cache type",
			writer.Type, owner.Type)
	case writer.TokenBytes != owner.TokenBytes:
		return differ("a token takes %d bytes in the KV cache of the prefill worker and %d in that of the decode worker: serve the same model on both",
			writer.TokenBytes, owner.TokenBytes)
	case writer.Layout != owner.Layout:
		return differ("the prefill worker lays blocks out as %.40s and the decode worker as %.40s: run the same engine and version on both",
			writer.Layout, owner.Layout)
	case max(writer.BlockSize, owner.BlockSize)%min(writer.BlockSize, owner.BlockSize) != 0:
		return differ("blocks of %d tokens of the prefill worker and of %d tokens of the decode worker cannot be converted: choose sizes where one is a multiple of the other",
			writer.BlockSize, owner.BlockSize)
	}
	if _, ok := SharedTransport(writer, owner); !ok {
		return differ("the prefill worker cannot reach the decode worker's memory by any of %s: give the decode worker an address for bulk transfers",
			transportNames(owner.Transports))
	}
	return nil
}

// SharedTransport returns the fastest transport of owner by which writer reaches it; ok is false if there is none.
func SharedTransport(writer, owner *Metadata) (t TransportAddress, ok bool) {
	at := slices.IndexFunc(owner.Transports, func(t TransportAddress) bool {
		return slices.ContainsFunc(writer.Transports, func(w TransportAddress) bool { return w.Name == t.Name && w.Scope == t.Scope })
	})
	if at < 0 {
		return TransportAddress{}, false
	}
	return owner.Transports[at], true
}

// transportNames returns the names of transports for a message.
func transportNames(all []TransportAddress) string {
	var names []string
	for _, t := range all {
		names = append(names, fmt.Sprintf("%.20s", t.Name))
	}
	return fmt.Sprint(names)
}

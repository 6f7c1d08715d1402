package enginefeed

import (
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// veil knows how prompts begin that an engine serves under a salt. Versions whose events do not tell of salts (vLLM
// before it had extra_keys, as 0.16) publish their blocks as if they were under none: to believe that would promise them to
// prompts without a salt. What begins as such a prompt is not believed, until an event shows that salts are told.
type veil struct {
	starts map[uint64]bool // digests of beginnings, of a block of the engine or of the whole prompt; true is a client's
	all    bool            // too many, or one of unknown tokens
	told   bool            // some event told of a salt, or has a place for it
	hidden uint64          // blocks of clients that were not believed
}

// maxStarts bounds the beginnings that are known apart.
const maxStarts = 1 << 16

// Salted says that a prompt is sent to the engine under a salt, before it is; nil is one of unknown tokens.
func (t *Table) Salted(prompt []kv.Token) { t.veil.begin(prompt, t.cfg.EngineBlock, true) }

// Probed says that a prompt of no client is sent to the engine under several salts, before it is: it is not believed
// either, and does not count in Saltless.
func (t *Table) Probed(prompt []kv.Token) { t.veil.begin(prompt, t.cfg.EngineBlock, false) }

// begin notes the beginning of a prompt, of at most a block of the engine.
func (v *veil) begin(prompt []kv.Token, size int, counts bool) {
	if v.told || v.all {
		return
	}
	prompt = prompt[:min(len(prompt), size)]
	if len(prompt) == 0 || len(v.starts) == maxStarts {
		v.all, v.starts = true, nil
		return
	}
	digest := uint64(0)
	for _, token := range prompt {
		digest = further(digest, token)
	}
	if v.starts == nil {
		v.starts = make(map[uint64]bool)
	}
	v.starts[digest] = counts || v.starts[digest]
}

// Adapted says that a prompt is sent to an adapter, before it is. It reports whether events tell of adapters; if they do
// not, what begins as the prompt is not believed.
func (t *Table) Adapted(prompt []kv.Token) (told bool) {
	t.adapters.begin(prompt, t.cfg.EngineBlock, true)
	return t.adapters.told
}

// Adapterless returns how many blocks were not believed because the engine's events do not tell of adapters.
func (t *Table) Adapterless() uint64 { return t.adapters.hidden }

// veiled reports whether the beginning of a prompt may be under a salt or an adapter of which e does not tell, and counts
// its n blocks if so.
func (t *Table) veiled(e *Event, n int) bool {
	salted := t.veil.hides(e, t.cfg.EngineBlock, n)
	return t.adapters.hides(e, t.cfg.EngineBlock, n) || salted
}

// TellsSalts reports whether an event showed that the engine's events tell of salts.
func (t *Table) TellsSalts() bool { return t.veil.told }

// Saltless returns how many blocks were not believed because the engine's events do not tell of salts; 0 if they do.
func (t *Table) Saltless() uint64 {
	if t.veil.told {
		return 0
	}
	return t.veil.hidden
}

func further(digest uint64, token kv.Token) uint64 {
	return splitmix.Mix(digest + splitmix.Step ^ uint64(token))
}

// hides reports whether the beginning of a prompt may be under a salt of which e does not tell, and counts its n blocks
// if it may be a client's.
func (v *veil) hides(e *Event, size, n int) bool {
	if v.told || !v.all && len(v.starts) == 0 {
		return false
	}
	if v.all {
		v.hidden += uint64(n)
		return true
	}
	digest := uint64(0)
	for _, token := range e.Tokens[:size] {
		digest = further(digest, token)
		if counts, found := v.starts[digest]; found {
			if counts {
				v.hidden += uint64(n)
			}
			return true
		}
	}
	return false
}

// saltOfBlock returns what a block that is remembered is under.
func (t *Table) saltOfBlock(id uint32) uint16 {
	if t.per > 1 {
		return t.pieces.all.at(id).salt
	}
	return t.blocks.all.at(id).salt
}

package enginefeed

import (
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// unreportedPrompts knows the starts of prompts which an engine serves under a salt (or an adapter) that
// its events do not report. Such versions (vLLM before extra_keys, as 0.16) publish these blocks as if they
// had no salt, and trusting that would promise the blocks to prompts without a salt. Blocks which start as
// such a prompt are suppressed until an event reports a salt.
type veil struct {
	starts map[uint64]bool // digests of starts, of one engine block or of the whole prompt; true for a client's
	all    bool            // too many starts, or one of unknown tokens: everything is suppressed
	told   bool            // an event reported a salt, or has a field for it
	hidden uint64          // suppressed blocks of clients
}

// maxStarts bounds the starts which are known separately.
const maxStarts = 1 << 16

// RecordSalted records a prompt under a salt. It is called before the prompt is sent to the engine. nil is
// a prompt of unknown tokens.
func (t *Table) Salted(prompt []kv.Token) { t.veil.begin(prompt, t.cfg.EngineBlock, true) }

// RecordProbe records a prompt which is sent to the engine under several salts and not for a client. It is
// called before the prompt is sent. Its blocks are suppressed too, and do not count in SuppressedBySalt.
func (t *Table) Probed(prompt []kv.Token) { t.veil.begin(prompt, t.cfg.EngineBlock, false) }

// recordStart records the start of a prompt, at most one engine block.
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

// RecordAdapted records a prompt to an adapter. It is called before the prompt is sent. It reports whether
// events report adapters. If they do not, blocks which start as the prompt are suppressed.
func (t *Table) Adapted(prompt []kv.Token) (told bool) {
	t.adapters.begin(prompt, t.cfg.EngineBlock, true)
	return t.adapters.told
}

// SuppressedByAdapter returns how many blocks were suppressed because the engine's events do not report
// adapters.
func (t *Table) Adapterless() uint64 { return t.adapters.hidden }

// suppressEvent reports whether the start of a prompt may be under a salt or an adapter which e does not
// report, and counts its n blocks if so.
func (t *Table) veiled(e *Event, n int) bool {
	salted := t.veil.hides(e, t.cfg.EngineBlock, n)
	return t.adapters.hides(e, t.cfg.EngineBlock, n) || salted
}

// ReportsSalts reports whether an event showed that the engine's events report salts.
func (t *Table) TellsSalts() bool { return t.veil.told }

// SuppressedBySalt returns how many blocks were suppressed because the engine's events do not report salts;
// 0 if they do.
func (t *Table) Saltless() uint64 {
	if t.veil.told {
		return 0
	}
	return t.veil.hidden
}

func further(digest uint64, token kv.Token) uint64 {
	return splitmix.Mix(digest + splitmix.Step ^ uint64(token))
}

// suppressStart reports whether the start of a prompt may be under a salt which e does not report. If the
// prompt may be a client's it counts its n blocks.
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

// blockSaltID returns the salt id of a remembered block.
func (t *Table) saltOfBlock(id uint32) uint16 {
	if t.per > 1 {
		return t.pieces.all.at(id).salt
	}
	return t.blocks.all.at(id).salt
}

package engineevents

import (
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// unreportedPrompts knows the starts of prompts which an engine serves under a salt (or an adapter) that
// its events do not report. Such versions (vLLM before extra_keys, as 0.16) publish these blocks as if they
// had no salt, and trusting that would promise the blocks to prompts without a salt. Blocks which start as
// such a prompt are suppressed until an event reports a salt.
type unreportedPrompts struct {
	starts     map[uint64]bool // digests of starts, of one engine block or of the whole prompt; true for a client's
	all        bool            // too many starts, or one of unknown tokens: everything is suppressed
	reported   bool            // an event reported a salt, or has a field for it
	suppressed uint64          // suppressed blocks of clients
}

// maxStarts bounds the starts which are known separately.
const maxStarts = 1 << 16

// RecordSalted records a prompt under a salt. It is called before the prompt is sent to the engine. nil is
// a prompt of unknown tokens.
func (t *Table) RecordSalted(prompt []kv.Token) {
	t.saltedPrompts.recordStart(prompt, t.cfg.EngineBlockSize, true)
}

// RecordProbe records a prompt which is sent to the engine under several salts and not for a client. It is
// called before the prompt is sent. Its blocks are suppressed too, and do not count in SuppressedBySalt.
func (t *Table) RecordProbe(prompt []kv.Token) {
	t.saltedPrompts.recordStart(prompt, t.cfg.EngineBlockSize, false)
}

// recordStart records the start of a prompt, at most one engine block.
func (v *unreportedPrompts) recordStart(prompt []kv.Token, size int, counts bool) {
	if v.reported || v.all {
		return
	}
	prompt = prompt[:min(len(prompt), size)]
	if len(prompt) == 0 || len(v.starts) == maxStarts {
		v.all, v.starts = true, nil
		return
	}
	digest := uint64(0)
	for _, token := range prompt {
		digest = mixDigest(digest, token)
	}
	if v.starts == nil {
		v.starts = make(map[uint64]bool)
	}
	v.starts[digest] = counts || v.starts[digest]
}

// RecordAdapted records a prompt to an adapter. It is called before the prompt is sent. It reports whether
// events report adapters. If they do not, blocks which start as the prompt are suppressed.
func (t *Table) RecordAdapted(prompt []kv.Token) (told bool) {
	t.adapterPrompts.recordStart(prompt, t.cfg.EngineBlockSize, true)
	return t.adapterPrompts.reported
}

// SuppressedByAdapter returns how many blocks were suppressed because the engine's events do not report
// adapters.
func (t *Table) SuppressedByAdapter() uint64 { return t.adapterPrompts.suppressed }

// suppressEvent reports whether the start of a prompt may be under a salt or an adapter which e does not
// report, and counts its n blocks if so.
func (t *Table) suppressEvent(e *Event, n int) bool {
	salted := t.saltedPrompts.suppressStart(e, t.cfg.EngineBlockSize, n)
	return t.adapterPrompts.suppressStart(e, t.cfg.EngineBlockSize, n) || salted
}

// ReportsSalts reports whether an event showed that the engine's events report salts.
func (t *Table) ReportsSalts() bool { return t.saltedPrompts.reported }

// SuppressedBySalt returns how many blocks were suppressed because the engine's events do not report salts;
// 0 if they do.
func (t *Table) SuppressedBySalt() uint64 {
	if t.saltedPrompts.reported {
		return 0
	}
	return t.saltedPrompts.suppressed
}

func mixDigest(digest uint64, token kv.Token) uint64 {
	return splitmix.Mix(digest + splitmix.Step ^ uint64(token))
}

// suppressStart reports whether the start of a prompt may be under a salt which e does not report. If the
// prompt may be a client's it counts its n blocks.
func (v *unreportedPrompts) suppressStart(e *Event, size, n int) bool {
	if v.reported || !v.all && len(v.starts) == 0 {
		return false
	}
	if v.all {
		v.suppressed += uint64(n)
		return true
	}
	digest := uint64(0)
	for _, token := range e.Tokens[:size] {
		digest = mixDigest(digest, token)
		if counts, found := v.starts[digest]; found {
			if counts {
				v.suppressed += uint64(n)
			}
			return true
		}
	}
	return false
}

// blockSaltID returns the salt id of a remembered block.
func (t *Table) blockSaltID(id uint32) uint16 {
	if t.pagesPerBlock > 1 {
		return t.pages.entries.at(id).salt
	}
	return t.blocks.entries.at(id).salt
}

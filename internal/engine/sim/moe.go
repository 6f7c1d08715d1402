package sim

import (
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// MoE is the shape of a mixture-of-experts model. The zero MoE means none: blocks have no labels.
type MoE struct {
	Layers, Experts int
	// Groups is the number of groups of consecutive experts; 0 means no groups.
	Groups int
}

// maxMoE bounds each number of a MoE, far above real models.
const maxMoE = 1 << 20

// isValid reports whether such a model is possible.
func (m MoE) isValid() bool {
	if m == (MoE{}) {
		return true
	}
	return m.Layers >= 1 && m.Layers <= maxMoE && m.Experts >= 1 && m.Experts <= maxMoE && m.Groups >= 0 && m.Groups <= m.Experts
}

// labelBlocks gives each block which is stored, or goes into a pool, an expert. The label is a function of the
// block's hash, so every event of every engine has the same label for a block.
func (m MoE) labelBlocks(events []kv.Event) {
	for i := range events {
		ev := &events[i]
		switch {
		case ev.Kind == kv.Moved && (ev.Move.To == kv.InTransit || ev.Move.To == kv.Pooled):
			ev.Labels = make([]kv.MoELabel, len(ev.Seqs))
			for j, seq := range ev.Seqs {
				ev.Labels[j] = m.labelFor(seq)
			}
			continue
		case ev.Kind != kv.Stored:
			continue
		}
		ev.Labels = make([]kv.MoELabel, len(ev.Blocks))
		name := ev.Parent
		for j, b := range ev.Blocks {
			name = kv.ExtendSeq(name, ev.Start+uint32(j), b)
			ev.Labels[j] = m.labelFor(name)
		}
	}
}

// labelFor returns the label of a block.
func (m MoE) labelFor(name kv.SeqHash) kv.MoELabel {
	h := splitmix.Mix(uint64(name) + splitmix.Step)
	l := kv.MoELabel{
		Has:    kv.HasExpert,
		Layer:  uint32((h >> 32) % uint64(m.Layers)),
		Expert: uint32((h & 0xffffffff) % uint64(m.Experts)),
	}
	if m.Groups > 0 {
		l.Has |= kv.HasGroup
		l.Group = uint32(uint64(l.Expert) * uint64(m.Groups) / uint64(m.Experts))
	}
	return l
}

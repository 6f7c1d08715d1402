package prefix

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// blockLabels is a label with the blocks of a page which have it.
type blockLabels struct {
	mask  uint64
	label kv.MoELabel
}

func compareLabels(a, b kv.MoELabel) int {
	return cmp.Or(cmp.Compare(a.Has, b.Has), cmp.Compare(a.Layer, b.Layer),
		cmp.Compare(a.Expert, b.Expert), cmp.Compare(a.Group, b.Group))
}

// labelledBlocks returns the blocks whose label matches q.
func (g *holderGroup) labelledBlocks(q *kv.MoEQuery) uint64 {
	if g.ext == nil {
		return 0
	}
	return matchingBlocks(g.ext.labels, q)
}

// matchingBlocks returns the blocks whose label matches q.
func matchingBlocks(labels []blockLabels, q *kv.MoEQuery) (mask uint64) {
	for i := range labels {
		if q.MatchesLabel(labels[i].label) {
			mask |= labels[i].mask
		}
	}
	return mask
}

// addBlocks adds blocks on a tier.
func (g *holderGroup) addBlocks(t kv.Tier, mask uint64) {
	if t == kv.TierDevice {
		g.device |= mask
		return
	}
	x := g.copyExt()
	x.slow[t-1] |= mask
	g.setExt(x)
}

// removeBlocks removes blocks from a tier; blocks which are on no tier have no label.
func (g *holderGroup) removeBlocks(t kv.Tier, mask uint64) {
	if t == kv.TierDevice {
		g.device &^= mask
	}
	if g.ext == nil {
		return
	}
	x := g.copyExt()
	if t != kv.TierDevice {
		x.slow[t-1] &^= mask
	}
	x.labels = removeLabels(x.labels, ^(g.device | x.slow[0] | x.slow[1] | x.slow[2]))
	g.setExt(x)
}

// setLabels sets the labels of the blocks in mask to the labels which an event has for the blocks from an offset
// on; an empty label removes the one before.
func (g *holderGroup) setLabels(mask uint64, offset int, labels []kv.MoELabel) {
	x := g.copyExt()
	x.labels = removeLabels(x.labels, mask)
	for i, is := range labels[:min(len(labels), window-offset)] {
		bit := mask & (1 << (offset + i))
		if bit != 0 {
			x.labels = addLabel(x.labels, bit, is)
		}
	}
	g.setExt(x)
}

// addLabel adds a label, unless it is empty, of blocks which have none. It changes labels.
func addLabel(labels []blockLabels, mask uint64, is kv.MoELabel) []blockLabels {
	if is.Has == 0 || !is.IsValid() {
		return labels
	}
	at, found := slices.BinarySearchFunc(labels, is, func(l blockLabels, is kv.MoELabel) int { return compareLabels(l.label, is) })
	if !found {
		labels = slices.Insert(labels, at, blockLabels{label: is})
	}
	labels[at].mask |= mask
	return labels
}

// removeLabels returns a copy of labels without the blocks in mask.
func removeLabels(labels []blockLabels, mask uint64) []blockLabels {
	var left []blockLabels
	for _, l := range labels {
		if l.mask &^= mask; l.mask != 0 {
			left = append(left, l)
		}
	}
	return left
}

// copyExt returns a copy of the extension of g.
func (g *holderGroup) copyExt() groupExt {
	if g.ext == nil {
		return groupExt{}
	}
	return groupExt{slow: g.ext.slow, labels: slices.Clone(g.ext.labels)}
}

// setExt makes x the extension of g; an empty one becomes nil.
func (g *holderGroup) setExt(x groupExt) {
	switch {
	case len(x.labels) == 0 && x.slow == [len(x.slow)]uint64{}:
		g.ext = nil
	default:
		x.labels = cloneCompact(x.labels)
		g.ext = &x
	}
}

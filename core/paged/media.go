package paged

import "penstock/core/kv"

// Media enter a block's hash by content only. K and V also depend on which row of
// an object a position shows, so blocks compare the ranges too, relative to their
// first token: the same picture begun elsewhere is other content.

// overlaps reports whether m shows in the block that begins at c.start.
func (c *content) overlaps(m kv.Media) bool {
	return m.Start < c.start+len(c.tokens) && m.End > c.start
}

// local moves the range of m to where position 0 is the block's first token.
func (c *content) local(m kv.Media) kv.Media {
	return kv.Media{Hash: m.Hash, Start: m.Start - c.start, End: m.End - c.start}
}

func (c *content) hasMedia() bool {
	for _, m := range c.media {
		if c.overlaps(m) {
			return true
		}
	}
	return false
}

// localMedia returns the media that show in the block; nil if there are none.
func (c *content) localMedia() []kv.Media {
	var local []kv.Media
	for _, m := range c.media {
		if c.overlaps(m) {
			local = append(local, c.local(m))
		}
	}
	return local
}

// sameMedia reports whether localMedia equals local.
func (c *content) sameMedia(local []kv.Media) bool {
	n := 0
	for _, m := range c.media {
		if !c.overlaps(m) {
			continue
		}
		if n == len(local) || local[n] != c.local(m) {
			return false
		}
		n++
	}
	return n == len(local)
}

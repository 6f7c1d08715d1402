package paged

import "penstock/core/kv"

// Media enter a block's hash by content only. K and V also depend on which row of
// an object a position shows, so blocks compare the ranges too: the same picture
// begun elsewhere is other content.

// overlaps reports whether m shows in the block.
func (c *content) overlaps(m kv.Media) bool {
	return m.Start < c.start+len(c.tokens) && m.End > c.start
}

func (c *content) hasMedia() bool {
	for _, m := range c.media {
		if c.overlaps(m) {
			return true
		}
	}
	return false
}

// shown returns the media that show in the block; nil if there are none.
func (c *content) shown() []kv.Media {
	var shown []kv.Media
	for _, m := range c.media {
		if c.overlaps(m) {
			shown = append(shown, m)
		}
	}
	return shown
}

// shows reports whether media are what shows in the block.
func (c *content) shows(media []kv.Media) bool {
	n := 0
	for _, m := range c.media {
		if !c.overlaps(m) {
			continue
		}
		if n == len(media) || media[n] != m {
			return false
		}
		n++
	}
	return n == len(media)
}

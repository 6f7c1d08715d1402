package paged

import "penstock/core/kv"

// A block's hash covers only the content of its media. K and V also depend on which row of an object each
// position shows, so blocks compare the ranges too: the same image at another offset is other content.

// overlapsMedia reports whether m overlaps the block.
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

// shownMedia returns the media which overlap the block; nil if there are none.
func (c *content) shown() []kv.Media {
	var shown []kv.Media
	for _, m := range c.media {
		if c.overlaps(m) {
			shown = append(shown, m)
		}
	}
	return shown
}

// showsExactly reports whether media are exactly the media which overlap the block.
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

package paged

import "penstock/core/kv"

// A block's hash covers only the content of its media. K and V also depend on which row of an object each
// position shows, so blocks compare the ranges too: the same image at another offset is other content.

// overlapsMedia reports whether m overlaps the block.
func (c *blockContent) overlapsMedia(m kv.Media) bool {
	return m.Start < c.start+len(c.tokens) && m.End > c.start
}

func (c *blockContent) hasMedia() bool {
	for _, m := range c.media {
		if c.overlapsMedia(m) {
			return true
		}
	}
	return false
}

// shownMedia returns the media which overlap the block; nil if there are none.
func (c *blockContent) shownMedia() []kv.Media {
	var shown []kv.Media
	for _, m := range c.media {
		if c.overlapsMedia(m) {
			shown = append(shown, m)
		}
	}
	return shown
}

// showsExactly reports whether media are exactly the media which overlap the block.
func (c *blockContent) showsExactly(media []kv.Media) bool {
	n := 0
	for _, m := range c.media {
		if !c.overlapsMedia(m) {
			continue
		}
		if n == len(media) || media[n] != m {
			return false
		}
		n++
	}
	return n == len(media)
}

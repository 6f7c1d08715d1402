package paged

import (
	"testing"

	"penstock/core/kv"
)

// TestNameAloneProvesNothing: of two contents with one hash, whatever differs, only the registered one is
// found. The hashes here are made equal by hand; TestForgedBlockIsNotShared uses a weakness of the hash
// function.
func TestNameAloneProvesNothing(t *testing.T) {
	first := blockContent{seq: 1, hash: 1, parent: noBlock, tokens: []kv.Token{1, 2, 3, 4}}
	later := blockContent{seq: 2, hash: 2, parent: 0, index: 1, start: 4, tokens: []kv.Token{5, 6, 7, 8}}
	salted := func(c blockContent, s kv.Salt) blockContent { c.salt = s; return c }
	shown := func(c blockContent, m ...kv.Media) blockContent { c.media = m; return c }
	mine := kv.Salt{Namespace: "mine"}
	picture := kv.Media{Hash: 9, Start: 2, End: 6}

	for _, c := range []struct {
		name          string
		here, another blockContent
	}{
		{"tokens", first, blockContent{seq: 1, hash: 1, parent: noBlock, tokens: []kv.Token{1, 2, 3, 5}}},
		{"no salt, salt", first, salted(first, mine)},
		{"salt, no salt", salted(first, mine), first},
		{"salt", salted(first, mine), salted(first, kv.Salt{Namespace: "theirs"})},
		{"kind of salt", salted(first, mine), salted(first, kv.Salt{LoRA: "mine"})},
		{"no media, media", first, shown(first, picture)},
		{"media, no media", shown(first, picture), first},
		{"media in the same place", shown(first, picture), shown(first, kv.Media{Hash: 8, Start: 2, End: 6})},
		{"beginning of media", shown(later, picture), shown(later, kv.Media{Hash: 9, Start: 3, End: 6})},
		{"end of media", shown(first, picture), shown(first, kv.Media{Hash: 9, Start: 2, End: 7})},
		{"fewer media", shown(later, picture, kv.Media{Hash: 9, Start: 7, End: 8}), shown(later, picture)},
		{"more media", shown(later, picture), shown(later, picture, kv.Media{Hash: 9, Start: 7, End: 8})},
		{"parent", later, blockContent{seq: 2, hash: 2, parent: 1, index: 1, start: 4, tokens: later.tokens}},
		{"no parent", later, blockContent{seq: 2, hash: 2, parent: noBlock, tokens: later.tokens}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(Config{Blocks: 8, BlockSize: 4})
			for range 2 { // blocks 0 and 1, to be parents
				p.takeBlock()
			}
			b := p.takeBlock()
			if own, ok := p.registerBlock(b, &c.here); !ok || own != b {
				t.Fatalf("registering gives %d, %v", own, ok)
			}
			if got, ok := p.findBlock(&c.here); !ok || got != b {
				t.Errorf("what is registered is found as %d, %v", got, ok)
			}
			if got, ok := p.findBlock(&c.another); ok {
				t.Errorf("something else is found as %d", got)
			}
			other := p.takeBlock()
			if own, ok := p.registerBlock(other, &c.another); ok || own != other {
				t.Errorf("registering something else under the name gives %d, %v", own, ok)
			}
			if own, ok := p.registerBlock(other, &c.here); !ok || own != b {
				t.Errorf("registering the same again gives %d, %v", own, ok)
			}
			if p.collisions != 1 {
				t.Errorf("%d collisions are counted, want 1", p.collisions)
			}
			// Its content is dropped with it.
			p.unregisterBlock(b)
			if own, ok := p.registerBlock(other, &c.another); !ok || own != other {
				t.Errorf("when the name is free, registering gives %d, %v", own, ok)
			}
			if _, ok := p.findBlock(&c.here); ok {
				t.Error("what was there before is found")
			}
			if got, ok := p.findBlock(&c.another); !ok || got != other {
				t.Errorf("what is there now is found as %d, %v", got, ok)
			}
		})
	}
}

// TestMediaOutsideTheBlock: media which do not overlap a block are not part of it.
func TestMediaOutsideTheBlock(t *testing.T) {
	p := newPool(Config{Blocks: 8, BlockSize: 4})
	p.takeBlock()
	c := blockContent{seq: 2, hash: 2, parent: 0, index: 1, start: 4, tokens: []kv.Token{5, 6, 7, 8}}
	b := p.takeBlock()
	p.registerBlock(b, &c)
	c.media = []kv.Media{{Hash: 1, Start: 0, End: 4}, {Hash: 1, Start: 8, End: 12}}
	if got, ok := p.findBlock(&c); !ok || got != b {
		t.Errorf("the block is found as %d, %v", got, ok)
	}
}

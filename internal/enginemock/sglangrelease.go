package enginemock

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"strings"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// sglangRelease holds the differences of a release of SGLang, as its sources and responses show.
type sglangRelease struct {
	version string
	// mapEvents encodes events as maps, not arrays.
	mapEvents bool
	// isolates says which request fields keep caches apart: none, extra_key alone, or cache_salt too.
	isolates isolation
	// namesSalts includes salts in the names of blocks and in events, namesAdapters LoRA adapters. Without
	// them, blocks with the same tokens have the same name.
	namesSalts, namesAdapters bool
	// announces adds kv_events to /server_info, announcesReplay the replay port to it.
	announces, announcesReplay bool
	// replayTopic adds topics to responses of replay.
	replayTopic bool
	// stored and removed are how many blocks of a node one event contains: one, or all.
	stored, removed grouping
	// takesHashes makes mm_hashes name media.
	takesHashes bool
	// aggregate makes /v1/loads sum the ranks, with fewer fields for each.
	aggregate bool
	// chats makes /tokenize accept conversations.
	chats bool
	// ready adds /ready.
	ready bool
	// retractions is their name in meta_info; spans adds weight_versions to it.
	retractions string
	spans       bool
}

// isolation says which request fields keep caches apart.
type isolation uint8

const (
	isolatesNothing isolation = iota
	isolatesByKey             // extra_key; the OpenAI API makes it of cache_salt and extra_key
	isolatesBySalt            // cache_salt and extra_key
)

// grouping says how many blocks one event contains.
type grouping uint8

const (
	perPage grouping = iota
	perNode
)

// sglangReleases returns the releases which can be mocked, the oldest first.
func sglangReleases() []sglangRelease {
	return []sglangRelease{
		{version: "0.5.9", aggregate: true, retractions: "total_retractions"},
		{
			version: "0.5.17", isolates: isolatesByKey, announces: true, removed: perNode, takesHashes: true, chats: true,
			retractions: "num_retractions",
		},
		{
			version: "0.5.23", mapEvents: true, isolates: isolatesBySalt, namesSalts: true, namesAdapters: true, announces: true, announcesReplay: true,
			replayTopic: true, stored: perNode, removed: perNode, takesHashes: true, chats: true, ready: true,
			retractions: "num_retractions", spans: true,
		},
	}
}

// mockedRelease returns a release of SGLang, the newest by default.
func mockedRelease(version string) *sglangRelease {
	all := sglangReleases()
	if i := slices.IndexFunc(all, func(r sglangRelease) bool { return r.version == version }); i >= 0 {
		return &all[i]
	}
	return &all[len(all)-1]
}

// EngineVersions returns the engine versions which can be mocked, the newest last; none if there is only one.
func EngineVersions(d Dialect) (versions []string) {
	if d != SGLang {
		return nil
	}
	for _, r := range sglangReleases() {
		versions = append(versions, r.version)
	}
	return versions
}

// hiddenSeparator separates the part of a salt which events show from the rest.
const hiddenSeparator = "\x00"

// publicPart returns the part of a salt or of an adapter which events show.
func publicPart(text string) string {
	before, _, _ := strings.Cut(text, hiddenSeparator)
	return before
}

// cacheNamespace is the cache namespace of a request. Events do not show what follows hiddenSeparator.
// Releases which know only one of the fields join both for requests of the OpenAI API.
func (r *sglangRelease) cacheNamespace(cacheSalt, extraKey string, openAI bool) string {
	switch r.isolates {
	case isolatesNothing:
		return ""
	case isolatesByKey:
		if openAI {
			extraKey = cacheSalt + extraKey
		}
		cacheSalt = ""
	case isolatesBySalt:
	}
	if extraKey != "" {
		return cacheSalt + hiddenSeparator + extraKey
	}
	return cacheSalt
}

// publishedSalt returns the part of a salt which events show.
func (r *sglangRelease) publishedSalt(salt kv.Salt) (say kv.Salt) {
	if r.namesSalts {
		say.Namespace = publicPart(salt.Namespace)
	}
	if r.namesAdapters {
		say.LoRA = publicPart(salt.LoRA)
	}
	return say
}

// blockName returns the name of a block after parent, 0 at the start of a prompt. As in the engine, it is the
// same in every instance and every engine. A reloaded adapter gives different names.
func (r *sglangRelease) blockName(parent uint64, salt kv.Salt, tokens []kv.Token) uint64 {
	h := fnv.New64a()
	if parent == 0 && r.namesSalts {
		_, _ = h.Write([]byte(publicPart(salt.Namespace)))
	}
	if r.namesAdapters {
		_, _ = h.Write([]byte(hiddenSeparator + salt.LoRA))
	}
	b := binary.BigEndian.AppendUint64(nil, parent)
	for _, t := range tokens {
		b = binary.BigEndian.AppendUint32(b, uint32(t))
	}
	_, _ = h.Write(b)
	return max(splitmix.Mix(h.Sum64()), 1)
}

// groupEvents splits or merges changes into the events of the release: one block each, or as many as follow
// each other.
func (r *sglangRelease) groupEvents(changes []cacheChange) (out []cacheChange) {
	for i := range changes {
		c := &changes[i]
		switch {
		case c.kind == blockStored && r.stored == perPage, c.kind == blockRemoved && r.removed == perPage:
			out = append(out, c.splitPages()...)
		case len(out) > 0 && out[len(out)-1].isFollowedBy(c):
			out[len(out)-1].appendChange(c)
		default:
			out = append(out, *c)
		}
	}
	return out
}

// splitPages returns one change for each block.
func (c *cacheChange) splitPages() (out []cacheChange) {
	for i, name := range c.names {
		one := *c
		one.names, one.first = []uint64{name}, c.first && i == 0
		if c.kind == blockStored {
			one.tokens, one.keys = c.tokens[i*c.size:(i+1)*c.size], [][]mediaKey{c.mediaKeysAt(i)}
			if i > 0 {
				one.parent = c.names[i-1]
			}
		}
		out = append(out, one)
	}
	return out
}

// isFollowedBy reports whether next can be in one event after c.
func (c *cacheChange) isFollowedBy(next *cacheChange) bool {
	if c.kind != next.kind || c.medium != next.medium || c.kind == allCleared {
		return false
	}
	return c.kind == blockRemoved || c.salt == next.salt && next.parent == c.names[len(c.names)-1]
}

func (c *cacheChange) appendChange(next *cacheChange) {
	c.names = append(slices.Clone(c.names), next.names...)
	c.tokens = append(slices.Clone(c.tokens), next.tokens...)
	c.keys = append(slices.Clone(c.keys), next.keys...)
}

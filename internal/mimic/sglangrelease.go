package mimic

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"strings"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// sglangRelease is how a release of SGLang differs from others, as its sources and its answers show.
type sglangRelease struct {
	version string
	// maps has events as maps, not arrays.
	maps bool
	// isolates has fields of requests keep caches apart: none, extra_key alone, or cache_salt too.
	isolates isolation
	// namesSalts has salts in the names of blocks and in events, namesAdapters LoRA adapters. Without, blocks with the
	// same tokens have one name.
	namesSalts, namesAdapters bool
	// announces has kv_events in /server_info, announcesReplay the port of replay in it.
	announces, announcesReplay bool
	// replayTopic has topics in answers to requests for replay.
	replayTopic bool
	// stored and removed are how many blocks of a node one event has: one, or all.
	stored, removed grouping
	// takesHashes has mm_hashes name media.
	takesHashes bool
	// aggregate has /v1/loads sum the ranks up, and say little of each.
	aggregate bool
	// chats has /tokenize take conversations.
	chats bool
	// ready has /ready.
	ready bool
	// retractions is what meta_info calls them; spans has weight_versions in it.
	retractions string
	spans       bool
}

// isolation says which fields of requests keep caches apart.
type isolation uint8

const (
	isolatesNothing isolation = iota
	isolatesByKey             // extra_key; the OpenAI API makes it of cache_salt and extra_key
	isolatesBySalt            // cache_salt and extra_key
)

// grouping says how many blocks one event has.
type grouping uint8

const (
	perPage grouping = iota
	perNode
)

// sglangReleases returns the releases that can be imitated, the oldest first.
func sglangReleases() []sglangRelease {
	return []sglangRelease{
		{version: "0.5.9", aggregate: true, retractions: "total_retractions"},
		{
			version: "0.5.17", isolates: isolatesByKey, announces: true, removed: perNode, takesHashes: true, chats: true,
			retractions: "num_retractions",
		},
		{
			version: "0.5.23", maps: true, isolates: isolatesBySalt, namesSalts: true, namesAdapters: true, announces: true, announcesReplay: true,
			replayTopic: true, stored: perNode, removed: perNode, takesHashes: true, chats: true, ready: true,
			retractions: "num_retractions", spans: true,
		},
	}
}

// release returns the release of SGLang that is imitated, the newest unless another was asked for; nil for other engines
// and for versions that are not known.
func (c *Config) release() *sglangRelease {
	if c.Dialect != SGLang {
		return nil
	}
	all := sglangReleases()
	i := len(all) - 1
	if c.EngineVersion != "" {
		i = slices.IndexFunc(all, func(r sglangRelease) bool { return r.version == c.EngineVersion })
	}
	if i < 0 {
		return nil
	}
	return &all[i]
}

// EngineVersions returns the versions of engines that can be imitated, the newest last; none where there is but one.
func EngineVersions(d Dialect) (versions []string) {
	if d != SGLang {
		return nil
	}
	for _, r := range sglangReleases() {
		versions = append(versions, r.version)
	}
	return versions
}

// untold separates what events tell of a salt from what they do not.
const untold = "\x00"

// told returns what events tell of a salt or of an adapter.
func told(text string) string {
	before, _, _ := strings.Cut(text, untold)
	return before
}

// namespace is what keeps the cache of a request apart. What is behind untold is in no event. openAI requests have their
// fields joined by releases which know one of them alone.
func (r *sglangRelease) namespace(cacheSalt, extraKey string, openAI bool) string {
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
		return cacheSalt + untold + extraKey
	}
	return cacheSalt
}

// tells returns what events say of a salt.
func (r *sglangRelease) tells(salt kv.Salt) (say kv.Salt) {
	if r.namesSalts {
		say.Namespace = told(salt.Namespace)
	}
	if r.namesAdapters {
		say.LoRA = told(salt.LoRA)
	}
	return say
}

// name returns the name of a block behind parent, 0 at the beginning of a prompt. As the engine's, it is the same in every
// life and in every engine. An adapter that was loaded again gives other names.
func (r *sglangRelease) name(parent uint64, salt kv.Salt, tokens []kv.Token) uint64 {
	h := fnv.New64a()
	if parent == 0 && r.namesSalts {
		_, _ = h.Write([]byte(told(salt.Namespace)))
	}
	if r.namesAdapters {
		_, _ = h.Write([]byte(untold + salt.LoRA))
	}
	b := binary.BigEndian.AppendUint64(nil, parent)
	for _, t := range tokens {
		b = binary.BigEndian.AppendUint32(b, uint32(t))
	}
	_, _ = h.Write(b)
	return max(splitmix.Mix(h.Sum64()), 1)
}

// group makes of changes the events that the release has: of one block each, or of as many as follow each other.
func (r *sglangRelease) group(changes []change) (out []change) {
	for i := range changes {
		c := &changes[i]
		switch {
		case c.kind == blockStored && r.stored == perPage, c.kind == blockRemoved && r.removed == perPage:
			out = append(out, c.pages()...)
		case len(out) > 0 && out[len(out)-1].continues(c):
			out[len(out)-1].extend(c)
		default:
			out = append(out, *c)
		}
	}
	return out
}

// pages returns a change of one block each.
func (c *change) pages() (out []change) {
	for i, name := range c.names {
		one := *c
		one.names, one.first = []uint64{name}, c.first && i == 0
		if c.kind == blockStored {
			one.tokens, one.keys = c.tokens[i*c.size:(i+1)*c.size], [][]mediaKey{c.shows(i)}
			if i > 0 {
				one.parent = c.names[i-1]
			}
		}
		out = append(out, one)
	}
	return out
}

// continues reports whether next can be in one event with c, before it.
func (c *change) continues(next *change) bool {
	if c.kind != next.kind || c.medium != next.medium || c.kind == allCleared {
		return false
	}
	return c.kind == blockRemoved || c.salt == next.salt && next.parent == c.names[len(c.names)-1]
}

func (c *change) extend(next *change) {
	c.names = append(slices.Clone(c.names), next.names...)
	c.tokens = append(slices.Clone(c.tokens), next.tokens...)
	c.keys = append(slices.Clone(c.keys), next.keys...)
}

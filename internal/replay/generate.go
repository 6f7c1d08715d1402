package replay

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"penstock/core/splitmix"
)

// promptBlockTokens is the size of a block in a generated prompt; each content of a prompt starts at a block
// boundary.
const pieceSize = 16

// generator is a synthetic workload: its kind and parameters. Lengths are means, in tokens.
type generator struct {
	kind     string
	seed     uint64
	requests int
	arrival  Process
	rate, cv float64

	input, output int
	vary          float64 // coefficient of variation of lengths and pauses

	// A prompt starts with one of groups prefixes, chosen with popularity 1/rank^zipf; the same holds for
	// documents and images.
	groups, prefix int
	zipf           float64

	// Each request has docs documents of a pool of documents.
	documents, document, docs int
	// Each request starts with one image of a pool of images.
	images, imageTokens, width, height int

	// Conversations have turns requests. The first request sends first tokens; each later one adds input
	// tokens and the previous output.
	turns, first int
	think        time.Duration
	context      int
}

// generatorKinds returns the kinds of synthetic workloads with their defaults.
func kinds() []generator {
	base := generator{requests: 1000, arrival: Poisson, rate: 10, cv: 2, vary: 0.5, zipf: 1, groups: 1, context: 131072}
	with := func(change func(g *generator)) generator {
		g := base
		change(&g)
		return g
	}
	return []generator{
		with(func(g *generator) { g.kind, g.input, g.output = "random", 1024, 128 }),
		with(func(g *generator) {
			g.kind, g.input, g.output = "shared", 256, 128
			g.groups, g.prefix = 32, 2048
		}),
		with(func(g *generator) {
			g.kind, g.input, g.output = "rag", 64, 200
			g.prefix, g.documents, g.document, g.docs = 256, 2000, 800, 4
		}),
		with(func(g *generator) {
			g.kind, g.input, g.output = "longdoc", 100, 300
			g.rate, g.documents, g.document, g.docs = 1, 100, 32768, 1
		}),
		with(func(g *generator) {
			g.kind, g.input, g.output = "images", 64, 128
			g.images, g.imageTokens, g.width, g.height = 500, 1024, 1024, 1024
		}),
		with(func(g *generator) {
			g.kind, g.input, g.output, g.first = "chat", 120, 250, 120
			g.rate, g.groups, g.prefix, g.turns, g.think = 2, 8, 512, 6, 20*time.Second
		}),
		with(func(g *generator) {
			g.kind, g.input, g.output, g.first = "agent", 600, 80, 400
			g.rate, g.groups, g.prefix, g.turns, g.think = 0.5, 4, 8192, 20, time.Second
		}),
		with(func(g *generator) {
			g.kind, g.input, g.output, g.first = "code", 24, 24, 1000
			g.rate, g.groups, g.prefix, g.turns, g.think = 0.5, 64, 3000, 40, 3*time.Second
		}),
	}
}

const (
	mostTokens   = 1 << 20
	mostRequests = 100_000_000
	mostPool     = 1_000_000
	mostOpen     = 1 << 20
)

// parameters returns the parameters of g's kind.
func (g *generator) knobs() []knob {
	out := []knob{
		whole("requests", &g.requests, 1, mostRequests),
		number("rate", &g.rate, leastRate, mostRate),
		choice("arrival", &g.arrival, Uniform, Poisson, Gamma),
		number("cv", &g.cv, leastCV, mostCV),
		whole("input", &g.input, 1, mostTokens),
		whole("output", &g.output, 1, mostTokens),
		number("vary", &g.vary, 0, 3),
	}
	add := func(k ...knob) { out = append(out, k...) }
	if g.prefix > 0 {
		add(whole("groups", &g.groups, 1, mostPool), whole("prefix", &g.prefix, 0, mostTokens))
	}
	if g.documents > 0 {
		add(whole("documents", &g.documents, 1, mostPool), whole("document", &g.document, 1, mostTokens))
	}
	if g.docs > 1 {
		add(whole("docs", &g.docs, 1, 100))
	}
	if g.images > 0 {
		add(whole("images", &g.images, 1, mostPool), whole("tokens", &g.imageTokens, 1, mostTokens),
			whole("width", &g.width, 1, 65536), whole("height", &g.height, 1, 65536))
	}
	if g.kind != "random" {
		add(number("zipf", &g.zipf, 0, 5))
	}
	if g.turns > 0 {
		add(whole("turns", &g.turns, 1, 10_000), whole("first", &g.first, 1, mostTokens),
			period("think", &g.think), whole("context", &g.context, pieceSize, 16*mostTokens))
	}
	return out
}

// ParseGenerator reads a synthetic workload from a flag, such as chat:rate=2,turns=8. Its requests are a
// function of the text and the seed. It holds the open conversations and the popularity of its pools in
// memory, never the workload.
//
// Each kind has the common parameters requests, rate (of requests or, where there are any, conversations a
// second), arrival (uniform, poisson, gamma) and its cv, input, output, and vary, the coefficient of
// variation of all lengths. docs/replay.md describes the kinds.
func ParseGenerator(s string, seed uint64) (Workload, error) {
	sp, err := parseSpec(s)
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	var names []string
	for _, g := range kinds() {
		if g.kind != sp.kind {
			names = append(names, g.kind)
			continue
		}
		g.seed = seed
		if err := sp.turn(g.knobs()); err != nil {
			return nil, fmt.Errorf("generate: %w", err)
		}
		if err := g.check(); err != nil {
			return nil, fmt.Errorf("generate: %s: %w", g.kind, err)
		}
		return &g, nil
	}
	return nil, fmt.Errorf("generate: %q is none of %s", sp.kind, strings.Join(names, ", "))
}

// checkParameters refuses inconsistent parameters.
func (g *generator) check() error {
	if g.docs > g.documents {
		return fmt.Errorf("a request shows %d documents of a pool of %d", g.docs, g.documents)
	}
	if g.turns == 0 {
		return nil
	}
	if g.prefix+g.first > g.context {
		return fmt.Errorf("prefix and first request, %d and %d tokens, do not fit a context of %d", g.prefix, g.first, g.context)
	}
	open := g.rate * float64(g.turns) * g.think.Seconds()
	if min(open, float64(g.requests)) > mostOpen {
		return errors.New("more than a million conversations would be open at once: lower rate, turns or think")
	}
	return nil
}

// Open implements Workload.
func (g *generator) Open() (Source, error) {
	s := &making{
		g:     g,
		clock: newClock(Arrival{Process: g.arrival, Rate: g.rate, CV: g.cv, Seed: g.seed}),
		shape: newRandom(g.seed, purposeShape),
		names: uint64(newRandom(g.seed, purposeContent).Source),
		group: newZipf(g.groups, g.zipf),
	}
	if g.documents > 0 {
		s.docs = newZipf(g.documents, g.zipf)
	}
	if g.images > 0 {
		s.images = newZipf(g.images, g.zipf)
	}
	return s, nil
}

// generatorSource is the source of a generator.
type making struct {
	g     *generator
	clock clock
	shape random // for everything drawn per request
	names uint64 // content ids derive from it
	count int

	group, docs, images zipf
	shown               []int // documents of the request

	open   conversations
	begun  int           // conversations
	coming time.Duration // when the next one starts
	drawn  bool          // nextStart is set
}

// The kinds of contents in a generated workload.
const (
	ofPrefix uint64 = iota + 1
	ofDocument
	ofRequest
	ofConversation
	ofImage
)

// contentID returns the id of the n-th content of a kind.
func (s *making) name(kind uint64, n int) uint64 {
	return splitmix.Mix(s.names ^ splitmix.Mix(kind<<56|uint64(n)))
}

// Close implements Source.
func (*making) Close() error { return nil }

// Next implements Source.
func (s *making) Next(r *Request) error {
	if s.count == s.g.requests {
		return io.EOF
	}
	*r = Request{Index: s.count, Blocks: r.Blocks[:0], Media: r.Media[:0], BlockTokens: pieceSize}
	s.count++
	if s.g.turns > 0 {
		s.converse(r)
		return nil
	}
	s.single(r)
	return nil
}

// makeSingle makes a request outside a conversation.
func (s *making) single(r *Request) {
	g := s.g
	r.At = s.clock.next()
	r.Output = length(&s.shape, g.output, g.vary)
	if g.images > 0 {
		s.show(r)
		return
	}
	if g.prefix > 0 {
		s.begin(r, s.group.draw(&s.shape))
	}
	s.shown = s.shown[:0]
	for range g.docs {
		n := s.docs.draw(&s.shape)
		for s.isShown(n) {
			n = (n + 1) % g.documents
		}
		s.shown = append(s.shown, n)
		name := s.name(ofDocument, n)
		s.put(r, name, s.fixed(name, g.document))
	}
	s.put(r, s.name(ofRequest, r.Index), length(&s.shape, g.input, g.vary))
}

func (s *making) isShown(n int) bool {
	for _, m := range s.shown {
		if m == n {
			return true
		}
	}
	return false
}

// makeImagePrompt makes a prompt of an image and a question. It has no blocks: the image tokens derive from
// the image id, and the question is unique to the request.
func (s *making) show(r *Request) {
	g := s.g
	id := s.name(ofImage, s.images.draw(&s.shape))
	r.Media = append(r.Media, Media{
		Kind: "image", ID: fmt.Sprintf("%016x", id), Width: g.width, Height: g.height, Tokens: g.imageTokens,
	})
	r.Input = g.imageTokens + length(&s.shape, g.input, g.vary)
	r.BlockTokens = 0
}

// appendPrefix appends the prefix of a group to an empty prompt.
func (s *making) begin(r *Request, group int) {
	name := s.name(ofPrefix, group)
	s.put(r, name, s.fixed(name, s.g.prefix))
}

// fixedLength returns the length of a content, the same in every request.
func (s *making) fixed(name uint64, mean int) int {
	own := random{splitmix.Source(name)}
	return length(&own, mean, s.g.vary)
}

// appendContent appends the first tokens of a content to a prompt, from the next block on.
func (s *making) put(r *Request, name uint64, tokens int) {
	r.Input = len(r.Blocks)*pieceSize + tokens
	for i := range (tokens + pieceSize - 1) / pieceSize {
		r.Blocks = append(r.Blocks, int64(splitmix.Mix(name+uint64(i)*splitmix.Step)))
	}
}

// drawLength draws a length with this mean from a gamma distribution, at least 1.
func length(r *random, mean int, vary float64) int {
	if vary == 0 {
		return mean
	}
	return int(min(max(float64(float64(mean)*r.gamma(1/float64(vary*vary)))+0.5, 1), mostTokens))
}

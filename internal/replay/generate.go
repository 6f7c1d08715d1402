package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"penstock/core/splitmix"
)

// promptBlockTokens is the size of a block in a generated prompt; each content of a prompt starts at a block
// boundary.
const promptBlockTokens = 16

// generator is a synthetic workload: its kind and parameters. Lengths are means, in tokens.
type generator struct {
	kind     string
	seed     uint64
	requests int
	arrival  ArrivalProcess
	rate, cv float64

	input, output int
	variation     float64 // coefficient of variation of lengths and pauses

	// A prompt starts with one of groups prefixes, chosen with popularity 1/rank^zipf; the same holds for
	// documents and images.
	groups, prefix int
	zipf           float64

	// Each request has docs documents of a pool of documents.
	documents, document, docs int
	// Each request shows one image of a pool of images or, with a share of new ones, a new one or one that was shown
	// before. before tokens of text which nothing else has come first.
	images, imageTokens, width, height, before int
	fresh                                      float64
	// Each request of a conversation shows the last images of it, so many; one is new.
	window int

	// Conversations have turns requests. The first request sends first tokens; each later one adds input
	// tokens and the previous output.
	turns, first int
	think        time.Duration
	context      int
}

// generatorKinds returns the kinds of synthetic workloads with their defaults.
func generatorKinds() []generator {
	base := generator{requests: 1000, arrival: Poisson, rate: 10, cv: 2, variation: 0.5, zipf: 1, groups: 1, context: 131072}
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
			g.kind, g.input, g.output, g.first = "window", 64, 256, 1
			g.rate, g.prefix, g.turns, g.think = 0.5, 2048, 8, 5*time.Second
			g.window, g.imageTokens, g.width, g.height = 5, 1024, 1024, 1024
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
	maxTokens        = 1 << 20
	maxRequests      = 100_000_000
	maxPoolSize      = 1_000_000
	maxConversations = 1 << 20
)

// parameters returns the parameters of g's kind.
func (g *generator) parameters() []parameter {
	out := []parameter{
		intParameter("requests", &g.requests, 1, maxRequests),
		floatParameter("rate", &g.rate, minRate, maxRate),
		choiceParameter("arrival", &g.arrival, Uniform, Poisson, Gamma),
		floatParameter("cv", &g.cv, minCV, maxCV),
		intParameter("input", &g.input, 1, maxTokens),
		intParameter("output", &g.output, 1, maxTokens),
		floatParameter("vary", &g.variation, 0, 3),
	}
	add := func(k ...parameter) { out = append(out, k...) }
	if g.prefix > 0 {
		least := 0
		if g.window > 0 {
			least = 1 // see Media.Start
		}
		add(intParameter("groups", &g.groups, 1, maxPoolSize), intParameter("prefix", &g.prefix, least, maxTokens))
	}
	if g.documents > 0 {
		add(intParameter("documents", &g.documents, 1, maxPoolSize), intParameter("document", &g.document, 1, maxTokens))
	}
	if g.docs > 1 {
		add(intParameter("docs", &g.docs, 1, 100))
	}
	if g.images > 0 {
		add(intParameter("images", &g.images, 1, maxPoolSize), intParameter("before", &g.before, 0, maxTokens), floatParameter("new", &g.fresh, 0, 1))
	}
	if g.window > 0 {
		add(intParameter("window", &g.window, 1, maxPictures))
	}
	if g.imageTokens > 0 {
		add(intParameter("tokens", &g.imageTokens, 1, maxTokens), intParameter("width", &g.width, 1, 65536), intParameter("height", &g.height, 1, 65536))
	}
	if g.kind != "random" {
		add(floatParameter("zipf", &g.zipf, 0, 5))
	}
	if g.turns > 0 {
		add(intParameter("turns", &g.turns, 1, 10_000), durationParameter("think", &g.think))
		if g.window == 0 {
			add(intParameter("first", &g.first, 1, maxTokens), intParameter("context", &g.context, promptBlockTokens, 16*maxTokens))
		}
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
	sp, err := parseFlagSpec(s)
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	var names []string
	for _, g := range generatorKinds() {
		if g.kind != sp.kind {
			names = append(names, g.kind)
			continue
		}
		g.seed = seed
		if err := sp.applyParameters(g.parameters()); err != nil {
			return nil, fmt.Errorf("generate: %w", err)
		}
		if err := g.checkParameters(); err != nil {
			return nil, fmt.Errorf("generate: %s: %w", g.kind, err)
		}
		return &g, nil
	}
	return nil, fmt.Errorf("generate: %q is none of %s", sp.kind, strings.Join(names, ", "))
}

// checkParameters refuses inconsistent parameters.
func (g *generator) checkParameters() error {
	if g.docs > g.documents {
		return fmt.Errorf("a request shows %d documents of a pool of %d", g.docs, g.documents)
	}
	if g.turns == 0 {
		return nil
	}
	if g.window == 0 && g.prefix+g.first > g.context {
		return fmt.Errorf("prefix and first request, %d and %d tokens, do not fit a context of %d", g.prefix, g.first, g.context)
	}
	open := g.rate * float64(g.turns) * g.think.Seconds()
	if min(open, float64(g.requests)) > maxConversations {
		return errors.New("more than a million conversations would be open at once: lower rate, turns or think")
	}
	return nil
}

// Open implements Workload.
func (g *generator) Open() (Source, error) {
	s := &generatorSource{
		gen:         g,
		clock:       newArrivalClock(Arrival{Process: g.arrival, Rate: g.rate, CV: g.cv, Seed: g.seed}),
		shape:       newRandomSource(g.seed, purposeShape),
		contentSeed: uint64(newRandomSource(g.seed, purposeContent).Source),
		group:       newZipfSampler(g.groups, g.zipf),
	}
	if g.documents > 0 {
		s.docs = newZipfSampler(g.documents, g.zipf)
	}
	if g.images > 0 {
		s.images = newZipfSampler(g.images, g.zipf)
	}
	return s, nil
}

// generatorSource is the source of a generator.
type generatorSource struct {
	gen         *generator
	clock       arrivalClock
	shape       randomSource // for everything drawn per request
	contentSeed uint64       // content ids derive from it
	count       int
	freshImages int // new images shown so far

	group, docs, images zipfSampler
	shown               []int // documents of the request

	conversations  conversationHeap
	started        int           // conversations
	nextStart      time.Duration // when the next one starts
	nextStartDrawn bool          // nextStart is set
}

// The kinds of contents in a generated workload.
const (
	prefixContent uint64 = iota + 1
	documentContent
	requestContent
	conversationContent
	imageContent
	questionContent
)

// contentID returns the id of the n-th content of a kind.
func (s *generatorSource) contentID(kind uint64, n int) uint64 {
	return splitmix.Mix(s.contentSeed ^ splitmix.Mix(kind<<56|uint64(n)))
}

// Close implements Source.
func (*generatorSource) Close() error { return nil }

// Next implements Source.
func (s *generatorSource) Next(r *Request) error {
	if s.count == s.gen.requests {
		return io.EOF
	}
	*r = Request{Index: s.count, Blocks: r.Blocks[:0], Media: r.Media[:0], BlockTokens: promptBlockTokens}
	s.count++
	if s.gen.turns > 0 {
		s.makeTurn(r)
		return nil
	}
	s.makeSingle(r)
	return nil
}

// makeSingle makes a request outside a conversation.
func (s *generatorSource) makeSingle(r *Request) {
	g := s.gen
	r.At = s.clock.nextTime()
	r.Output = drawLength(&s.shape, g.output, g.variation)
	if g.images > 0 {
		s.makeImagePrompt(r)
		return
	}
	if g.prefix > 0 {
		s.appendPrefix(r, s.group.drawRank(&s.shape))
	}
	s.shown = s.shown[:0]
	for range g.docs {
		n := s.docs.drawRank(&s.shape)
		for s.isDocumentShown(n) {
			n = (n + 1) % g.documents
		}
		s.shown = append(s.shown, n)
		name := s.contentID(documentContent, n)
		s.appendContent(r, name, s.fixedLength(name, g.document))
	}
	s.appendContent(r, s.contentID(requestContent, r.Index), drawLength(&s.shape, g.input, g.variation))
}

func (s *generatorSource) isDocumentShown(n int) bool {
	return slices.Contains(s.shown, n)
}

// makeImagePrompt makes a prompt of an image and a question. Without text before the image it has no blocks: the
// image tokens derive from the image id, and the question is unique to the request.
func (s *generatorSource) makeImagePrompt(r *Request) {
	g := s.gen
	id := s.contentID(imageContent, s.drawImage())
	if g.before > 0 {
		s.appendContent(r, s.contentID(requestContent, r.Index), drawLength(&s.shape, g.before, g.variation))
		s.appendImage(r, id)
		s.appendContent(r, s.contentID(questionContent, r.Index), drawLength(&s.shape, g.input, g.variation))
		return
	}
	r.Media = append(r.Media, g.imageOf(id))
	r.Input = g.imageTokens + drawLength(&s.shape, g.input, g.variation)
	r.BlockTokens = 0
}

// drawImage returns the number of the image that a request shows.
func (s *generatorSource) drawImage() int {
	share := s.gen.fresh
	if share == 0 {
		return s.images.drawRank(&s.shape)
	}
	// Of any first requests this share shows a new image, to the next whole number.
	if due := int(math.Ceil(float64(share * float64(s.count)))); s.freshImages < due {
		s.freshImages++
		return s.freshImages - 1
	}
	return s.shape.Below(s.freshImages)
}

// imageOf returns an image of an id.
func (g *generator) imageOf(id uint64) Media {
	return Media{Kind: "image", ID: fmt.Sprintf("%016x", id), Width: g.width, Height: g.height, Tokens: g.imageTokens}
}

// appendImage appends an image to a prompt of blocks, which is not empty.
func (s *generatorSource) appendImage(r *Request, id uint64) {
	m := s.gen.imageOf(id)
	m.Start = len(r.Blocks) * promptBlockTokens
	r.Media = append(r.Media, m)
	s.appendContent(r, id, s.gen.imageTokens)
}

// appendPrefix appends the prefix of a group to an empty prompt.
func (s *generatorSource) appendPrefix(r *Request, group int) {
	name := s.contentID(prefixContent, group)
	s.appendContent(r, name, s.fixedLength(name, s.gen.prefix))
}

// fixedLength returns the length of a content, the same in every request.
func (s *generatorSource) fixedLength(name uint64, mean int) int {
	own := randomSource{splitmix.Source(name)}
	return drawLength(&own, mean, s.gen.variation)
}

// appendContent appends the first tokens of a content to a prompt, from the next block on.
func (s *generatorSource) appendContent(r *Request, name uint64, tokens int) {
	r.Input = len(r.Blocks)*promptBlockTokens + tokens
	for i := range (tokens + promptBlockTokens - 1) / promptBlockTokens {
		r.Blocks = append(r.Blocks, int64(splitmix.Mix(name+uint64(i)*splitmix.Step)))
	}
}

// drawLength draws a length with this mean from a gamma distribution, at least 1.
func drawLength(r *randomSource, mean int, vary float64) int {
	if vary == 0 {
		return mean
	}
	return int(min(max(float64(float64(mean)*r.drawGamma(1/float64(vary*vary)))+0.5, 1), maxTokens))
}

package tiny

import (
	"errors"
	"slices"
	"sync"

	"penstock/core/fault"
	"penstock/core/guide"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// newVocab returns the tokens of a vocabulary that have text and may be sampled.
func newVocab(text func([]byte, kv.Token) ([]byte, bool), mask []kv.Token, size int) *guide.Vocab {
	masked := make([]bool, size)
	for _, t := range mask {
		if int(t) < size {
			masked[t] = true
		}
	}
	var scratch []byte
	return guide.NewVocab(size, func(id int) []byte {
		if masked[id] {
			return nil
		}
		var ok bool
		if scratch, ok = text(scratch[:0], kv.Token(id)); !ok {
			return nil
		}
		return scratch
	})
}

// maxGrammars is how many compiled schemas are kept.
const keptGuides = 8

// grammarCache holds compiled schemas, the most recently used last. It is safe for concurrent use; nil
// refuses structured output.
type guides struct {
	vocab *guide.Vocab
	text  func([]byte, kv.Token) ([]byte, bool)

	mu struct {
		sync.Mutex
		kept []*rules
	}
}

// compiledSchema is one schema. Only the engine's loop uses the masks.
type rules struct {
	schema  string
	grammar *guide.Grammar
	masks   *guide.Masks
	text    func([]byte, kv.Token) ([]byte, bool)
}

func newGuides(vocab *guide.Vocab, text func([]byte, kv.Token) ([]byte, bool)) *guides {
	return &guides{vocab: vocab, text: text}
}

// openSchema returns the compiled schema of g, nil for none.
func (s *guides) open(g *engine.Guide) (*rules, error) {
	switch {
	case g == nil:
		return nil, nil
	case s == nil:
		return nil, engine.RefuseGuide()
	}
	if r := s.find(g.Schema); r != nil {
		return r, nil
	}
	grammar, err := guide.Compile(g.Schema)
	if err != nil {
		return nil, aboutGuide(err)
	}
	return s.keep(&rules{schema: string(g.Schema), grammar: grammar, masks: guide.NewMasks(s.vocab), text: s.text}), nil
}

func (s *guides) find(schema []byte) *rules {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.mu.kept, func(r *rules) bool { return r.schema == string(schema) })
	if i < 0 {
		return nil
	}
	r := s.mu.kept[i]
	s.mu.kept = append(slices.Delete(s.mu.kept, i, i+1), r)
	return r
}

// keepSchema keeps r in place of the least recently used schema, unless another goroutine has stored the same
// schema first.
func (s *guides) keep(r *rules) *rules {
	if other := s.find([]byte(r.schema)); other != nil {
		return other
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.kept) == keptGuides {
		s.mu.kept = slices.Delete(s.mu.kept, 0, 1)
	}
	s.mu.kept = append(s.mu.kept, r)
	return r
}

// withGuideParam sets the request parameter that an error is about.
func aboutGuide(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		f.Param = engine.GuideParam
	}
	return err
}

// constraint is the position of a choice's text in its schema. Once the engine's loop has it, only the loop
// uses it.
type follower struct {
	*rules
	state *guide.State
	// stops end the choice. The drawable ones may come where the text is complete, from the output position
	// least on, or where nothing else can follow.
	stops, drawable []kv.Token
	least           int
	scratch         []byte
}

// drawableTokens returns the tokens which a model with a vocabulary of vocab may sample.
func drawable(tokens, mask []kv.Token, vocab int) []kv.Token {
	return slices.DeleteFunc(slices.Clone(tokens), func(t kv.Token) bool {
		return int(t) >= vocab || slices.Contains(mask, t)
	})
}

func newFollower(r *rules, stops, drawable []kv.Token, least int) *follower {
	return &follower{rules: r, state: r.grammar.NewState(), stops: stops, drawable: drawable, least: least}
}

// resumeText replays what was generated before, whose last token may be a stop token.
func (f *follower) resume(generated []kv.Token) error {
	for i, t := range generated {
		if i == len(generated)-1 && slices.Contains(f.stops, t) {
			break
		}
		if f.take(t) != nil {
			return fault.New(fault.Invalid, "the earlier output does not match the guide; resume on an engine of the same model and version")
		}
	}
	return nil
}

// acceptToken advances by the text of a token. A stop token has none.
func (f *follower) take(t kv.Token) error {
	if slices.Contains(f.stops, t) {
		return nil
	}
	var ok bool
	if f.scratch, ok = f.text(f.scratch[:0], t); !ok || !f.state.Write(f.scratch) {
		return fault.New(fault.Internal, "a token was drawn that the guide does not allow; report this")
	}
	return nil
}

// isComplete reports whether the text ends here without a stop token: nothing can be added, and no stop token
// can be sampled.
func (f *follower) over() bool { return len(f.drawable) == 0 && f.state.Ended() }

// allowedTokens returns the tokens that may be sampled at an output position, as bits in the memory of dst.
func (f *follower) allowed(dst []uint64, position int) ([]uint64, error) {
	mask, err := f.masks.Of(f.state)
	if err != nil {
		return dst, aboutGuide(err)
	}
	dst = append(dst[:0], mask...)
	for _, t := range f.stops {
		if int(t/64) < len(dst) {
			dst[t/64] &^= 1 << (t % 64)
		}
	}
	any := slices.ContainsFunc(dst, func(word uint64) bool { return word != 0 })
	if f.state.Complete() && (position >= f.least || !any) {
		for _, t := range f.drawable {
			dst[t/64] |= 1 << (t % 64)
			any = true
		}
	}
	if !any {
		return dst, fault.Param(engine.GuideParam, "no token of this model can go on with a text that matches the JSON schema; its vocabulary lacks the characters")
	}
	return dst, nil
}

package tiny

import (
	"errors"
	"slices"
	"sync"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/grammar"
)

// newVocab returns the tokens of a vocabulary that have text and may be sampled.
func newVocab(text func([]byte, kv.Token) ([]byte, bool), mask []kv.Token, size int) *grammar.Vocab {
	masked := make([]bool, size)
	for _, t := range mask {
		if int(t) < size {
			masked[t] = true
		}
	}
	var scratch []byte
	return grammar.NewVocab(size, func(id int) []byte {
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
const maxGrammars = 8

// grammarCache holds compiled schemas, the most recently used last. It is safe for concurrent use; nil
// refuses structured output.
type grammarCache struct {
	vocab *grammar.Vocab
	text  func([]byte, kv.Token) ([]byte, bool)

	mu struct {
		sync.Mutex
		kept []*compiledSchema
	}
}

// compiledSchema is one schema. Only the engine's loop uses the masks.
type compiledSchema struct {
	schema  string
	grammar *grammar.Grammar
	masks   *grammar.MaskCache
	text    func([]byte, kv.Token) ([]byte, bool)
}

func newGrammarCache(vocab *grammar.Vocab, text func([]byte, kv.Token) ([]byte, bool)) *grammarCache {
	return &grammarCache{vocab: vocab, text: text}
}

// openSchema returns the compiled schema of g, nil for none.
func (s *grammarCache) openSchema(g *engine.OutputSchema) (*compiledSchema, error) {
	switch {
	case g == nil:
		return nil, nil
	case s == nil:
		return nil, engine.RefuseSchema()
	}
	if r := s.findSchema(g.Schema); r != nil {
		return r, nil
	}
	compiled, err := grammar.Compile(g.Schema)
	if err != nil {
		return nil, withGuideParam(err)
	}
	return s.keepSchema(&compiledSchema{
		schema: string(g.Schema), grammar: compiled, masks: grammar.NewMaskCache(s.vocab), text: s.text,
	}), nil
}

func (s *grammarCache) findSchema(schema []byte) *compiledSchema {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.mu.kept, func(r *compiledSchema) bool { return r.schema == string(schema) })
	if i < 0 {
		return nil
	}
	r := s.mu.kept[i]
	s.mu.kept = append(slices.Delete(s.mu.kept, i, i+1), r)
	return r
}

// keepSchema keeps r in place of the least recently used schema, unless another goroutine has stored the same
// schema first.
func (s *grammarCache) keepSchema(r *compiledSchema) *compiledSchema {
	if other := s.findSchema([]byte(r.schema)); other != nil {
		return other
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.kept) == maxGrammars {
		s.mu.kept = slices.Delete(s.mu.kept, 0, 1)
	}
	s.mu.kept = append(s.mu.kept, r)
	return r
}

// withGuideParam sets the request parameter that an error is about.
func withGuideParam(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		f.Param = engine.SchemaParam
	}
	return err
}

// constraint is the position of a choice's text in its schema. Once the engine's loop has it, only the loop
// uses it.
type constraint struct {
	*compiledSchema
	state *grammar.State
	// stops end the choice. The drawable ones may come where the text is complete, from the output position
	// least on, or where nothing else can follow.
	stops, drawable []kv.Token
	least           int
	scratch         []byte
}

// drawableTokens returns the tokens which a model with a vocabulary of vocab may sample.
func drawableTokens(tokens, mask []kv.Token, vocab int) []kv.Token {
	return slices.DeleteFunc(slices.Clone(tokens), func(t kv.Token) bool {
		return int(t) >= vocab || slices.Contains(mask, t)
	})
}

func newConstraint(r *compiledSchema, stops, drawable []kv.Token, least int) *constraint {
	return &constraint{compiledSchema: r, state: r.grammar.NewState(), stops: stops, drawable: drawable, least: least}
}

// resumeText replays what was generated before, whose last token may be a stop token.
func (f *constraint) resumeText(generated []kv.Token) error {
	for i, t := range generated {
		if i == len(generated)-1 && slices.Contains(f.stops, t) {
			break
		}
		if f.acceptToken(t) != nil {
			return fault.New(fault.Invalid, "the earlier output does not match the guide; resume on an engine of the same model and version")
		}
	}
	return nil
}

// acceptToken advances by the text of a token. A stop token has none.
func (f *constraint) acceptToken(t kv.Token) error {
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
func (f *constraint) isComplete() bool { return len(f.drawable) == 0 && f.state.IsEnded() }

// allowedTokens returns the tokens that may be sampled at an output position, as bits in the memory of dst.
func (f *constraint) allowedTokens(dst []uint64, position int) ([]uint64, error) {
	mask, err := f.masks.TokenMask(f.state)
	if err != nil {
		return dst, withGuideParam(err)
	}
	dst = append(dst[:0], mask...)
	for _, t := range f.stops {
		if int(t/64) < len(dst) {
			dst[t/64] &^= 1 << (t % 64)
		}
	}
	any := slices.ContainsFunc(dst, func(word uint64) bool { return word != 0 })
	if f.state.IsComplete() && (position >= f.least || !any) {
		for _, t := range f.drawable {
			dst[t/64] |= 1 << (t % 64)
			any = true
		}
	}
	if !any {
		return dst, fault.InvalidParam(engine.SchemaParam, "no token of this model can go on with a text that matches the JSON schema; its vocabulary lacks the characters")
	}
	return dst, nil
}

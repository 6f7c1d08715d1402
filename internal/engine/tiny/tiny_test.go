package tiny

import (
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// smallShape is a model small enough to compute thousands of tokens in a test.
func smallShape() model.Config {
	return model.Config{
		HiddenSize: 32, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 8, Intermediate: 48,
		VocabSize: 96, MaxPositions: 320, RopeTheta: 10_000, RMSEps: 1e-5,
	}
}

// pieces are the texts of test tokens, by id.
var pieces = []string{
	"", "", "", "{", "}", "[", "]", "", "", ":", ",", `"`, `\`, "-", ".", "/", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9",
	"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x", "y", "z",
	`{"`, `":`, `,"`, `"}`, `],`, `[[`, `"]`, `":"`, "é", "日", " ", "true", "null", "E", "+", "_", "ab", "na", "me", "12", "00", "},", "!",
}

// pieceText gives tokens the texts of pieces; those beyond repeat them.
func pieceText(dst []byte, t kv.Token) ([]byte, bool) {
	text := pieces[int(t)%len(pieces)]
	return append(dst, text...), text != ""
}

// small returns an engine over the small model with room for few sequences.
func small(t testing.TB, change func(*Config)) *Engine {
	t.Helper()
	cfg := Config{Name: "small", Blocks: 120, BlockSize: 4, MaxSeqs: 16, TokenBudget: 48, Vocabulary: Vocabulary{Size: 96}, Text: pieceText}
	if change != nil {
		change(&cfg)
	}
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	shape := smallShape()
	m, err := model.New(t.Context(), shape, randomWeights(&shape, 1))
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEngine(cfg, &network{model: m, eos: []kv.Token{7, 8}, mask: []kv.Token{0, 1, 2, 8}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestConformance(t *testing.T) {
	enginetest.Test(t, enginetest.Options{
		New:  func(t testing.TB) engine.Engine { return small(t, nil) },
		Text: func(token kv.Token) string { return pieces[int(token)%len(pieces)] },
	})
}

// TestConformanceUnguided is that of an engine which does not know the texts of
// its tokens.
func TestConformanceUnguided(t *testing.T) {
	enginetest.Test(t, enginetest.Options{New: func(t testing.TB) engine.Engine {
		return small(t, func(c *Config) { c.Text = nil })
	}})
}

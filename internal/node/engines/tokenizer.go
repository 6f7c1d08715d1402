package engines

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media/family"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/checkpoint"
	"penstock/internal/serve/frontend"
)

// RemoteModel is the local tokenizer, template and facts of a remote engine's model, as far as they are here.
type RemoteModel struct {
	Ref engine.TokenizerRef
	// pipe makes prompts as the engine does, and own is the tokenizer's pipeline for any kind of engine; nil
	// if only the engine has the tokenizer.
	pipe, own *prep.Pipeline
	facts     modelFacts // valid with pipe
	// from says where the tokenizer is, for people. note says why it is not here, with remedy; "" if it is.
	From, Note, Remedy string
	// usesEnginePrompts means that frontends nevertheless let the engine make their prompts.
	enginePrompts bool
}

// PassRemedy says how to serve an engine whose tokenizer cannot be used here.
const PassRemedy = "have the engine make the tokens with mode=pass"

// noteText is the note with its remedy; "" if there is none.
func (m *RemoteModel) noteText() string {
	if m.Note == "" {
		return ""
	}
	return m.Note + ": " + m.Remedy
}

// ResolveModel finds the tokenizer of an engine's model, and its pipeline as the engine serves it.
func ResolveModel(of *config.RemoteEngine, found Facts, cfg *config.Loaded) (RemoteModel, error) {
	m, err := resolveTokenizer(of, found, cfg.HubCacheDir())
	m.own = m.pipe
	m.pipe = m.own.ForServing(family.Serving{Loader: family.LoaderForEngine(of.Kind), ProcessorArgs: of.ProcessorArgs})
	m.enginePrompts = frontend.Preprocess(cfg.Engine.Preprocess) == frontend.PreprocessEngine
	return m, err
}

// resolveTokenizer finds the tokenizer of an engine's model: in the directory of the settings, in the
// directory which the engine names, or in the hub cache. Requests for an engine without a local tokenizer are
// passed through, unless the settings ask for tokens.
func resolveTokenizer(of *config.RemoteEngine, found Facts, hub string) (RemoteModel, error) {
	if of.Mode == config.ModePass {
		return engineOnlyModel("", ""), nil
	}
	if of.ModelPath != "" {
		m, err := openTokenizerDir(of.ModelPath)
		if err != nil {
			err = fmt.Errorf("%w; name another directory with --model-path, or %s", err, PassRemedy)
		}
		return m, err
	}
	if config.IsBuiltinModel(found.root) {
		return openBuiltinTokenizer()
	}
	dir, tried := locateTokenizer(found.root, hub)
	if dir != "" {
		m, err := openTokenizerDir(dir)
		if err == nil || of.Mode == config.ModeTokens {
			return m, err
		}
		return engineOnlyModel(
			fmt.Sprintf("the tokenizer in %s cannot be used (%v), so that requests are passed on as they are, and streams cannot move", dir, err),
			"repair the file, or name a directory with a converted tokenizer with --model-path",
		), nil
	}
	where := ""
	if len(tried) > 0 {
		where = ", and it is not in " + strings.Join(tried, " or ")
	}
	what := "a directory with the tokenizer.json of its model"
	if found.root != "" {
		what += " (" + found.root + ")"
	}
	if of.Mode == config.ModeTokens {
		return RemoteModel{}, fmt.Errorf("mode=tokens needs the model's tokenizer%s: name %s with --model-path DIR, or for this engine alone with model-path=DIR", where, what)
	}
	return engineOnlyModel(
		fmt.Sprintf("the tokenizer of %s is not here%s, so that requests are passed on as they are, and streams cannot move to another engine", cmp.Or(found.root, "its model"), where),
		fmt.Sprintf("name %s with --model-path", what),
	), nil
}

// engineOnlyModel is a model whose tokenizer only the engine has.
func engineOnlyModel(note, remedy string) RemoteModel {
	return RemoteModel{Ref: engine.TokenizerRef{Kind: engine.TokenizerOfEngine}, From: engine.TokenizerOfEngine, Note: note, Remedy: remedy}
}

// openBuiltinTokenizer opens the tokenizer of the built-in models, which simulated servers serve.
func openBuiltinTokenizer() (RemoteModel, error) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		return RemoteModel{}, err
	}
	v, err := builtinVocabulary()
	if err != nil {
		return RemoteModel{}, err
	}
	return RemoteModel{
		Ref: engine.TokenizerRef{Kind: "builtin", Digest: pipe.Digest}, pipe: pipe, From: "this program",
		facts: modelFacts{vocabulary: v.Size, eos: v.EOS},
	}, nil
}

func openTokenizerDir(dir string) (RemoteModel, error) {
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		return RemoteModel{}, err
	}
	facts, err := readModelFacts(dir, pipe)
	if err != nil {
		return RemoteModel{}, err
	}
	return RemoteModel{Ref: engine.TokenizerRef{Kind: "dir", Dir: dir, Digest: pipe.Digest}, pipe: pipe, facts: facts, From: dir}, nil
}

// probeText contains what the tokenizers of different models split differently: words, numbers, other
// scripts, marks, spaces.
const probeText = "Water flows downhill: 1234567 litres, 3.14159%; naïve café, Grüße, вода течёт, 水が流れる, 물 🙂\n\n\t\tfor (int i=0; i<n; ++i) { x_1 += \"a b  c\"; }\n"

// CheckTokenizer compares the tokenizer here with the engine's, if the engine tokenizes texts. With a
// different tokenizer every prefix prediction would be wrong and every prompt a different text, without any
// error. A different chat template is no error: the prompt follows the template here, and note says what that
// means.
func CheckTokenizer(ctx context.Context, e engine.Engine, m *RemoteModel, log *slog.Logger) (note string, err error) {
	p, ok := e.(engine.Preprocessor)
	if !ok || m.pipe == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	name := e.Card().Name
	theirs, err := p.Preprocess(ctx, &engine.PreprocessRequest{ID: "penstock-check", Attempt: 1, Model: name, Text: probeText})
	if err != nil {
		if fault.CodeOf(err) != fault.Unimplemented {
			log.Warn("the tokenizer cannot be compared with the engine's", "error", err)
		}
		return "", nil
	}
	ours := m.pipe.Tokenizer.Encode(nil, probeText, prep.EncodeOptions{})
	if at, same := firstDifference(ours, theirs.Tokens); !same {
		return "", fmt.Errorf("the tokenizer in %s is not the engine's: of a text of %d tokens here (%d there) token %d differs; name the checkpoint that the engine serves with --model-path, or have it make the tokens with mode=pass", m.From, len(ours), len(theirs.Tokens), at)
	}
	return checkTemplate(ctx, p, e.Card(), m), nil
}

// probeParts are content parts of a message; they expose engines which join texts differently.
const probeParts = `[{"type":"text","text":"Where does the water go?"},{"type":"text","text":"And why?"}]`

// checkTemplate compares the prompts of a message with text content and of one with content parts.
func checkTemplate(ctx context.Context, p engine.Preprocessor, card engine.Card, m *RemoteModel) (note string) {
	if m.pipe.Template == nil {
		return fmt.Sprintf("the chat template in %s is not there or cannot be run, so that chats are refused (%s); frontends started with --preprocess engine have the engine make their prompts", m.From, m.pipe.TemplateName)
	}
	if !hasSamePrompt(ctx, p, &card, m, prep.Message{Role: "user", Content: "Where does the water go?"}) {
		return fmt.Sprintf("the engine's chat template makes another prompt of a conversation than the one in %s, which is used: frontends started with --preprocess engine use the engine's", m.From)
	}
	if !hasSamePrompt(ctx, p, &card, m, prep.Message{Role: "user", Parts: []byte(probeParts)}) {
		return "the engine makes another prompt of a message with content parts than other engines of its kind, which its prompts are made like here: frontends started with --preprocess engine have it make them"
	}
	return ""
}

// hasSamePrompt reports whether the engine's prompt of a message equals ours; true if it cannot be
// determined.
func hasSamePrompt(ctx context.Context, p engine.Preprocessor, card *engine.Card, m *RemoteModel, of prep.Message) bool {
	c := &prep.Chat{Messages: []prep.Message{of}, AddGenerationPrompt: true}
	c.Content, _ = prep.ContentRuleOf(card.Engine)
	theirs, err := p.Preprocess(ctx, &engine.PreprocessRequest{ID: "penstock-check", Attempt: 1, Model: card.Name, Chat: prep.AppendChat(nil, c)})
	if err != nil {
		return true
	}
	ours, err := m.pipe.EncodeChat(nil, c)
	return err != nil || slices.Equal(ours, theirs.Tokens)
}

// firstDifference returns the first index at which two token sequences differ.
func firstDifference(a, b []kv.Token) (at int, same bool) {
	if slices.Equal(a, b) {
		return 0, true
	}
	for at = range min(len(a), len(b)) {
		if a[at] != b[at] {
			return at, false
		}
	}
	return min(len(a), len(b)), false
}

// modelFacts are a checkpoint's facts from its small files, for a model whose weights are loaded elsewhere.
type modelFacts struct {
	vocabulary int // entries
	context    int // tokens; 0 if unknown
	eos        []kv.Token
	defaults   engine.Sampling
}

// readModelFacts reads the facts of the checkpoint in dir; pipe is of the same directory. A directory with
// only a tokenizer yields little, which suffices for an engine that reports the rest.
func readModelFacts(dir string, pipe *prep.Pipeline) (modelFacts, error) {
	facts, generation, err := checkpoint.ReadFacts(dir)
	if err != nil {
		return modelFacts{}, fmt.Errorf("%s: %w", dir, err)
	}
	// The model's vocabulary may be padded beyond its tokenizer's, or the tokenizer's extended beyond
	// config.json.
	m := modelFacts{vocabulary: max(facts.VocabSize, pipe.Tokenizer.VocabSize()), context: facts.MaxPositions, defaults: generation.Sampling()}
	m.eos = checkpoint.EndOfSequence(&facts, &generation, m.vocabulary)
	if t, ok := pipe.Tokenizer.(*token.Tokenizer); ok && len(m.eos) == 0 {
		if id, ok := t.EOS(); ok {
			m.eos = []kv.Token{id}
		}
	}
	return m, nil
}

// locateTokenizer returns the directory of the tokenizer of an engine's model. root is what the engine was
// started with: a directory, if it also exists here, or a Hugging Face hub name whose files are in the local
// cache. It fetches and writes nothing. It returns "" if the tokenizer is not here; tried says where it
// looked.
func locateTokenizer(root, hub string) (dir string, tried []string) {
	if root == "" {
		return "", nil
	}
	if filepath.IsAbs(root) { // relative paths depend on where the engine was started
		if hasTokenizer(root) {
			return root, nil
		}
		return "", []string{root}
	}
	if hub == "" || !isHubName(root) {
		return "", nil
	}
	model := filepath.Join(hub, "models--"+strings.ReplaceAll(root, "/", "--"))
	for _, revision := range listRevisions(model) {
		if dir := filepath.Join(model, "snapshots", revision); hasTokenizer(dir) {
			return dir, nil
		}
	}
	return "", []string{model}
}

// hubNames matches hub names: organisation/model, or a model alone.
const hubNames = `^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?$`

// isHubName reports whether text is a hub name which cannot lead out of the cache.
func isHubName(text string) bool {
	ok, err := regexp.MatchString(hubNames, text)
	return ok && err == nil && len(text) < 256 && !strings.Contains(text, "..") && !strings.Contains(text, "--")
}

// listRevisions lists the revisions of a cached model to try: main, which engines load unless told otherwise,
// or the only one present.
func listRevisions(model string) []string {
	const maxRevision = 256
	if data, err := os.ReadFile(filepath.Join(model, "refs", "main")); err == nil && len(data) <= maxRevision {
		if name := strings.TrimSpace(string(data)); name != "" && name == filepath.Base(name) && !strings.HasPrefix(name, ".") {
			return []string{name}
		}
	}
	entries, err := os.ReadDir(filepath.Join(model, "snapshots"))
	if err != nil || len(entries) != 1 {
		return nil // with several, it is unknown which one the engine uses
	}
	return []string{entries[0].Name()}
}

func hasTokenizer(dir string) bool {
	st, err := os.Stat(filepath.Join(dir, "tokenizer.json"))
	return err == nil && st.Mode().IsRegular()
}

package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
)

// remoteModel is what is between text and tokens for an engine that another program runs,
// as far as it is here.
type remoteModel struct {
	ref   engine.TokenizerRef
	pipe  *prep.Pipeline // nil: the engine alone has it
	facts modelFacts     // with pipe
	// from says where it is, for people, and note what would make it better; "" if nothing.
	from, note string
}

// tokenizerOf finds the tokenizer of an engine's model: in the directory that the
// settings name, or in the one that the engine names, or in the cache of the hub. An engine whose
// tokenizer is not here has requests passed on as they are, unless the settings ask
// for tokens.
func tokenizerOf(of *config.RemoteEngine, found lookedAt, hub string) (remoteModel, error) {
	if of.Mode == config.ModePass {
		return engineOnly(""), nil
	}
	if of.ModelPath != "" {
		return openTokenizerDir(of.ModelPath)
	}
	if config.BuiltinModel(found.root) {
		return builtinTokenizer()
	}
	dir, tried := locate(found.root, hub)
	if dir != "" {
		m, err := openTokenizerDir(dir)
		if err == nil || of.Mode == config.ModeTokens {
			return m, err
		}
		return engineOnly(fmt.Sprintf("the tokenizer in %s cannot be used (%v): requests are passed on as they are, and streams cannot move; a repaired or converted one can be named with --model-path", dir, err)), nil
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
		return remoteModel{}, fmt.Errorf("mode=tokens needs the model's tokenizer%s: name %s with --model-path DIR, or for this engine alone with model-path=DIR", where, what)
	}
	return engineOnly(fmt.Sprintf("the model's tokenizer is not here%s: requests are passed on as they are, and streams cannot move to another engine; name %s with --model-path", where, what)), nil
}

// engineOnly is a model whose tokenizer only the engine has.
func engineOnly(note string) remoteModel {
	return remoteModel{ref: engine.TokenizerRef{Kind: engine.TokenizerOfEngine}, from: engine.TokenizerOfEngine, note: note}
}

// builtinTokenizer is that of the built-in models, which simulated servers serve.
func builtinTokenizer() (remoteModel, error) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		return remoteModel{}, err
	}
	v, err := builtinVocabulary()
	if err != nil {
		return remoteModel{}, err
	}
	return remoteModel{
		ref: engine.TokenizerRef{Kind: "builtin", Digest: pipe.Digest}, pipe: pipe, from: "this program",
		facts: modelFacts{vocabulary: v.Size, eos: v.EOS},
	}, nil
}

func openTokenizerDir(dir string) (remoteModel, error) {
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		return remoteModel{}, err
	}
	facts, err := readModel(dir, pipe)
	if err != nil {
		return remoteModel{}, err
	}
	return remoteModel{ref: engine.TokenizerRef{Kind: "dir", Dir: dir, Digest: pipe.Digest}, pipe: pipe, facts: facts, from: dir}, nil
}

// probeText is made of what tokenizers of different models cut differently: words,
// numbers, other scripts, marks, spaces.
const probeText = "Water flows downhill: 1234567 litres, 3.14159%; naïve café, Grüße, вода течёт, 水が流れる, 물 🙂\n\n\t\tfor (int i=0; i<n; ++i) { x_1 += \"a b  c\"; }\n"

// checkTokenizer compares the tokenizer here with the engine's, where the engine makes
// tokens of texts: with another one every cached prefix would be a wrong guess, and every
// prompt another text, and nothing would say so. A template that differs is no error: the
// prompt is that of the template here, and note says what that means.
func checkTokenizer(ctx context.Context, e engine.Engine, m *remoteModel, log *slog.Logger) (note string, err error) {
	p, ok := e.(engine.Preprocessor)
	if !ok || m.pipe == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	name := e.Card().Name
	theirs, err := p.Preprocess(ctx, &engine.PreprocessRequest{ID: "penstock-check", Attempt: 1, Model: name, Text: probeText})
	if err != nil {
		if fault.Of(err) != fault.Unimplemented {
			log.Warn("the tokenizer cannot be compared with the engine's", "error", err)
		}
		return "", nil
	}
	ours := m.pipe.Tokenizer.Encode(nil, probeText, prep.EncodeOptions{})
	if at, same := firstDifference(ours, theirs.Tokens); !same {
		return "", fmt.Errorf("the tokenizer in %s is not the engine's: of a text of %d tokens here (%d there) token %d differs; name the checkpoint that the engine serves with --model-path, or have it make the tokens with mode=pass", m.from, len(ours), len(theirs.Tokens), at)
	}
	return checkTemplate(ctx, p, e.Card(), m), nil
}

// probeParts are the parts of a message's content, by which engines are told apart that join texts.
const probeParts = `[{"type":"text","text":"Where does the water go?"},{"type":"text","text":"And why?"}]`

// checkTemplate compares the prompts of a message that is a text and of one that has parts.
func checkTemplate(ctx context.Context, p engine.Preprocessor, card engine.Card, m *remoteModel) (note string) {
	if m.pipe.Template == nil {
		return fmt.Sprintf("the chat template in %s is not there or cannot be run, so that chats are refused (%s); frontends started with --preprocess engine have the engine make their prompts", m.from, m.pipe.TemplateName)
	}
	if !samePrompt(ctx, p, &card, m, prep.Message{Role: "user", Content: "Where does the water go?"}) {
		return fmt.Sprintf("the engine's chat template makes another prompt of a conversation than the one in %s, which is used: frontends started with --preprocess engine use the engine's", m.from)
	}
	if !samePrompt(ctx, p, &card, m, prep.Message{Role: "user", Parts: []byte(probeParts)}) {
		return "the engine makes another prompt of a message with content parts than other engines of its kind, which its prompts are made like here: frontends started with --preprocess engine have it make them"
	}
	return ""
}

// samePrompt reports whether the engine's prompt of a message is ours, as far as it can be told.
func samePrompt(ctx context.Context, p engine.Preprocessor, card *engine.Card, m *remoteModel, of prep.Message) bool {
	c := &prep.Chat{Messages: []prep.Message{of}, AddGenerationPrompt: true}
	c.Content, _ = prep.ContentRuleOf(card.Engine)
	theirs, err := p.Preprocess(ctx, &engine.PreprocessRequest{ID: "penstock-check", Attempt: 1, Model: card.Name, Chat: prep.AppendChat(nil, c)})
	if err != nil {
		return true
	}
	ours, err := m.pipe.EncodeChat(nil, c)
	return err != nil || slices.Equal(ours, theirs.Tokens)
}

// firstDifference returns where two texts of tokens begin to differ.
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

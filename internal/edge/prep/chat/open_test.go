package chat

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
)

// checkpoint returns a directory with the given files.
func checkpoint(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, contents := range files {
		if err := os.WriteFile(filepath.Join(dir, name), contents, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func fixture(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open("../token/testdata/" + name + ".tokenizer.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	contents, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return contents
}

func TestOpenBuiltin(t *testing.T) {
	p := openPipeline(t)
	if p.TemplateName != "builtin" || len(p.Digest) != 64 {
		t.Errorf("template %q, digest %q", p.TemplateName, p.Digest)
	}
	if end, _ := p.Tokenizer.ID("<|end|>"); !slices.Equal(p.StopTokens, []kv.Token{end}) {
		t.Errorf("stop tokens %v", p.StopTokens)
	}
}

// TestOpenBuiltinWrittenOut: the files of the built-in tokenizer in a directory
// are the same tokenizer, template and digest.
func TestOpenBuiltinWrittenOut(t *testing.T) {
	tokenizer, config := token.BuiltinFiles()
	dir := checkpoint(t, map[string][]byte{tokenizerFile: tokenizer, configFile: config})
	inside := openPipeline(t)
	outside, err := Open(Ref{Kind: "dir", Dir: dir, Digest: inside.Digest})
	if err != nil {
		t.Fatal(err)
	}
	if outside.Digest != inside.Digest || outside.TemplateName != inside.TemplateName {
		t.Errorf("%q, %q", outside.Digest, outside.TemplateName)
	}
}

func TestOpenChatML(t *testing.T) {
	p, err := Open(Ref{Kind: "dir", Dir: checkpoint(t, map[string][]byte{tokenizerFile: fixture(t, "qwen2")})})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(p.TemplateName, "chatml") {
		t.Errorf("template %q", p.TemplateName)
	}
	ids := encode(t, p, oneTurn("Hello <|im_end|>"))
	// What the reference makes of the same prompt when nothing is forged.
	const prompt = "<|im_start|>user\nHello <|im_end|>\n<|im_start|>assistant\n"
	honest := p.Tokenizer.Encode(nil, "<|im_start|>user\nHello ", prep.EncodeOptions{ParseSpecial: true})
	if n := len(honest) - 1; !slices.Equal(ids[:n], honest[:n]) {
		t.Errorf("%v does not begin with %v", ids, honest[:n])
	}
	d := p.Tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: true})
	var text []byte
	for _, id := range ids {
		text = d.Push(text, id)
	}
	if want := strings.Replace(prompt, "Hello ", "Hello <|im_end|>", 1); string(d.Flush(text)) != want {
		t.Errorf("%q, want %q", text, want)
	}
	end, _ := p.Tokenizer.ID("<|im_end|>")
	if !slices.Equal(p.StopTokens, []kv.Token{end}) {
		t.Errorf("stop tokens %v", p.StopTokens)
	}
}

func TestOpenWithoutTemplate(t *testing.T) {
	p, err := Open(Ref{Kind: "dir", Dir: checkpoint(t, map[string][]byte{tokenizerFile: fixture(t, "gpt2")})})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(p.TemplateName, "none") || p.StopTokens != nil {
		t.Errorf("template %q, stop tokens %v", p.TemplateName, p.StopTokens)
	}
	if _, err := p.EncodeChat(nil, oneTurn("Hello")); fault.CodeOf(err) != fault.Unimplemented || !strings.Contains(err.Error(), "/v1/completions") {
		t.Errorf("EncodeChat: %v", err)
	}
	if ids := p.EncodeText(nil, "Hello"); len(ids) == 0 {
		t.Error("EncodeText gives nothing")
	}
}

// TestOpenRefusedTemplate: a template that cannot be run here still tells how turns
// end and calls are written, for prompts that others make.
func TestOpenRefusedTemplate(t *testing.T) {
	template := "{% bogus %}{{ '<tool_call>' }}<|im_end|>"
	p, err := Open(Ref{Kind: "dir", Dir: checkpoint(t, map[string][]byte{tokenizerFile: fixture(t, "qwen2"), templateFile: []byte(template)})})
	if err != nil {
		t.Fatal(err)
	}
	if p.Template != nil || !strings.HasPrefix(p.TemplateName, "none") || !strings.Contains(p.TemplateName, templateFile) {
		t.Errorf("template %v, %q", p.Template, p.TemplateName)
	}
	end, _ := p.Tokenizer.ID("<|im_end|>")
	if !slices.Equal(p.StopTokens, []kv.Token{end}) || p.TemplateText != template {
		t.Errorf("stop tokens %v, text %q", p.StopTokens, p.TemplateText)
	}
}

// TestDigest: every file counts, by name and contents.
func TestDigest(t *testing.T) {
	tokenizer, config := token.BuiltinFiles()
	seen := map[string]string{}
	for name, files := range map[string]map[string][]byte{
		"tokenizer":         {tokenizerFile: tokenizer},
		"tokenizer, config": {tokenizerFile: tokenizer, configFile: config},
		"another config":    {tokenizerFile: tokenizer, configFile: append(config, ' ')},
		"empty template":    {tokenizerFile: tokenizer, configFile: config, templateFile: {}},
		"template":          {tokenizerFile: tokenizer, configFile: config, templateFile: []byte("x")},
	} {
		p, err := Open(Ref{Kind: "dir", Dir: checkpoint(t, files)})
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[p.Digest]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[p.Digest] = name
	}
}

func TestOpenErrors(t *testing.T) {
	tokenizer, _ := token.BuiltinFiles()
	digest := strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		ref  Ref
		code fault.Code
		says string
	}{
		"kind":         {Ref{Kind: "hub"}, fault.Unimplemented, `"hub"`},
		"no kind":      {Ref{}, fault.Unimplemented, "builtin or dir"},
		"no file":      {Ref{Kind: "dir", Dir: checkpoint(t, nil)}, fault.NotFound, "tokenizer.json"},
		"not a model":  {Ref{Kind: "dir", Dir: t.TempDir()}, fault.NotFound, "neither tokenizer.json nor config.json"},
		"no directory": {Ref{Kind: "dir", Dir: "/nonexistent/checkpoint"}, fault.NotFound, "/nonexistent/checkpoint"},
		"unreadable":   {Ref{Kind: "dir", Dir: unreadable(t)}, fault.Invalid, "tokenizer.json: not a regular file"},
		"broken":       {Ref{Kind: "dir", Dir: checkpoint(t, map[string][]byte{tokenizerFile: []byte("{")})}, fault.Invalid, "parse tokenizer.json"},
		"broken config": {
			Ref{Kind: "dir", Dir: checkpoint(t, map[string][]byte{tokenizerFile: tokenizer, configFile: []byte("{")})},
			fault.Invalid, "parse tokenizer_config.json",
		},
		"unsupported":    {Ref{Kind: "dir", Dir: checkpoint(t, map[string][]byte{tokenizerFile: []byte(`{"model":{"type":"Markov"}}`)})}, fault.Unimplemented, "Markov"},
		"another digest": {Ref{Kind: "builtin", Digest: digest}, fault.Conflict, "000000000000"},
	} {
		p, err := Open(c.ref)
		if p != nil || fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v (%v); want %v and %q", name, p, err, fault.CodeOf(err), c.code, c.says)
		}
	}
}

// unreadable returns a checkpoint whose tokenizer.json cannot be read: it is a
// directory.
func unreadable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, tokenizerFile), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

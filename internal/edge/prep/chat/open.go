package chat

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
)

// Ref locates a tokenizer. It has the fields of engine.TokenizerRef, which converts to it.
type Ref struct {
	Kind   string // "builtin" or "dir"
	Dir    string // the checkpoint's directory, for "dir"
	Digest string // the expected digest of the pipeline; "" for any
}

// Open makes the pipeline described by ref. From a directory it reads tokenizer.json and, where they exist,
// tokenizer_config.json, chat_template.jinja and the tool template beside it, else chat_template.json, and
// the configurations of the model and its media processors. The error is a *fault.Error: NotFound without a
// tokenizer, Conflict for another digest, Unimplemented or Invalid for unusable files.
func Open(ref Ref) (*prep.Pipeline, error) {
	var p *prep.Pipeline
	var err error
	switch ref.Kind {
	case "builtin":
		p, err = openBuiltin()
	case "dir":
		p, err = openDir(ref.Dir)
	default:
		return nil, fault.New(fault.Unimplemented, "open tokenizer: kind %q is not known; use builtin or dir", ref.Kind)
	}
	if err != nil {
		return nil, err
	}
	if ref.Digest != "" && ref.Digest != p.Digest {
		return nil, fault.New(fault.Conflict, "open tokenizer: the files here have digest %.12s, the worker's have %.12s; give both the same checkpoint", p.Digest, ref.Digest)
	}
	return p, nil
}

func openBuiltin() (*prep.Pipeline, error) {
	t, err := token.Builtin()
	if err != nil {
		return nil, err
	}
	d := newDigest()
	tokenizer, config := token.BuiltinFiles()
	d.addFile(tokenizerFile, tokenizer)
	d.addFile(configFile, config)
	p := &prep.Pipeline{Tokenizer: t, Digest: d.hexSum()}
	chooseTemplate(p)
	_ = p.OpenFamily(func(as family.Serving) (*family.Family, error) { return family.OpenBuiltinFor(as, t) }) // NoFamilyReason has the error
	return p, nil
}

// familyEncoder adapts a tokenizer to family.Encoder.
type familyEncoder struct{ prep.Tokenizer }

// Tokens implements family.Encoder.
func (v familyEncoder) Tokens(text string) []kv.Token {
	return v.Encode(nil, text, prep.EncodeOptions{})
}

// The files which say how a model shows media.
const (
	modelFile     = "config.json"
	imageFile     = "preprocessor_config.json"
	processorFile = "processor_config.json"
	videoFile     = "video_preprocessor_config.json"
)

// openFamily sets the family of the model in dir. The files enter the digest only for models with a family,
// since they then determine the prompt.
func openFamily(p *prep.Pipeline, d fileDigest, dir string) error {
	var files family.CheckpointFiles
	all := []struct {
		name string
		dst  *[]byte
	}{{modelFile, &files.Config}, {imageFile, &files.Preprocessor}, {processorFile, &files.Processor}, {videoFile, &files.VideoPreprocessor}}
	for _, file := range all {
		var err error
		if *file.dst, err = readFile(dir, file.name); err != nil {
			return err
		}
	}
	open := func(as family.Serving) (*family.Family, error) {
		return family.OpenFor(files, as, familyEncoder{p.Tokenizer})
	}
	if err := p.OpenFamily(open); err != nil {
		return nil // a model without media, or with an unknown way to show them, is served as text
	}
	for _, file := range all {
		if *file.dst != nil {
			d.addFile(file.name, *file.dst)
		}
	}
	return nil
}

// The files of a checkpoint which are read.
const (
	tokenizerFile         = "tokenizer.json"
	configFile            = "tokenizer_config.json"
	templateFile          = "chat_template.jinja"
	toolUseFile           = "additional_chat_templates/tool_use.jinja"
	processorTemplateFile = "chat_template.json" // of vision models older than templateFile
)

func openDir(dir string) (*prep.Pipeline, error) {
	d := newDigest()
	tokenizer, err := d.readAndAdd(dir, tokenizerFile)
	if err != nil {
		return nil, err
	}
	if tokenizer == nil {
		if _, err := os.Stat(filepath.Join(dir, modelFile)); errors.Is(err, fs.ErrNotExist) {
			return nil, fault.New(fault.NotFound, "open tokenizer %s: there is neither %s nor %s; name the directory of a checkpoint", dir, tokenizerFile, modelFile)
		}
		return nil, fault.New(fault.NotFound, "open tokenizer %s: there is no %s; convert the checkpoint's tokenizer to that form", dir, tokenizerFile)
	}
	config, err := d.readAndAdd(dir, configFile)
	if err != nil {
		return nil, err
	}
	template, err := d.readAndAdd(dir, templateFile)
	if err != nil {
		return nil, err
	}
	var toolUse []byte
	if template != nil {
		if toolUse, err = d.readAndAdd(dir, toolUseFile); err != nil {
			return nil, err
		}
	}
	t, err := token.Parse(tokenizer, config)
	if err != nil {
		return nil, wrapOpenError(dir, err)
	}
	p := &prep.Pipeline{Tokenizer: t}
	parsed, err := parseConfig(config)
	if err != nil {
		return nil, wrapOpenError(dir, err)
	}
	if template == nil && parsed.hasNoTemplate() {
		if template, err = processorTemplate(d, dir); err != nil {
			return nil, err
		}
	}
	setOwnTemplate(p, parsed, template, toolUse)
	if err := openFamily(p, d, dir); err != nil {
		return nil, err
	}
	p.Digest = d.hexSum()
	return p, nil
}

// processorTemplate returns the template in processorTemplateFile, nil if there is none.
func processorTemplate(d fileDigest, dir string) ([]byte, error) {
	b, err := readFile(dir, processorTemplateFile)
	if b == nil || err != nil {
		return nil, err
	}
	var file struct {
		Template string `json:"chat_template"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fault.New(fault.Invalid, "open tokenizer %s: parse %s: %w", dir, processorTemplateFile, err)
	}
	d.addFile(processorTemplateFile, b)
	return []byte(file.Template), nil
}

// setOwnTemplate sets the checkpoint's own template, or one in Go if it has none. A template which cannot run
// is not replaced: a model which sees other prompts than in training silently answers worse.
func setOwnTemplate(p *prep.Pipeline, c tokenizerConfig, file, toolUse []byte) {
	sources, from, err := c.templateSources(file, toolUse)
	if err == nil && sources == nil {
		chooseTemplate(p)
		return
	}
	// The template shows how a model ends turns and writes calls, even if an engine runs it.
	p.TemplateText = sources["default"] + sources["tool_use"]
	p.StopTokens = specialTokenIDs(p.Tokenizer, stopTexts(sources, c.named)...)
	var t *checkpointTemplate
	if err == nil {
		t, err = newCheckpointTemplate(sources, c.named)
	}
	if err != nil {
		p.TemplateName = "none; the checkpoint's own, in " + from + ", cannot be used: " + err.Error()
		return
	}
	p.Template, p.TemplateName = t, "jinja, from "+from
}

func wrapOpenError(dir string, err error) error {
	return fault.New(fault.CodeOf(err), "open tokenizer %s: %w", dir, err)
}

// chooseTemplate chooses among the templates in Go by the vocabulary.
func chooseTemplate(p *prep.Pipeline) {
	if p.StopTokens = specialTokenIDs(p.Tokenizer, turnEnd); hasAllTokens(p.Tokenizer, builtinTokens()) {
		p.Template, p.TemplateName, p.ToolFormat = builtinTemplate(), "builtin", toolFormat
		return
	}
	if p.StopTokens = specialTokenIDs(p.Tokenizer, chatMLEnd); hasAllTokens(p.Tokenizer, []string{chatMLStart, chatMLEnd}) {
		p.Template, p.TemplateName = chatMLTemplate(), "chatml, chosen by the vocabulary; the checkpoint has no template of its own"
		p.ToolFormat = toolFormat
		return
	}
	p.StopTokens = nil
	p.TemplateName = "none; the checkpoint has none of its own, and its vocabulary fits no built-in one"
}

func hasAllTokens(t prep.Tokenizer, names []string) bool {
	return len(specialTokenIDs(t, names...)) == len(names)
}

// specialTokenIDs returns the ids of the special tokens of t among names.
func specialTokenIDs(t prep.Tokenizer, names ...string) []kv.Token {
	var found []kv.Token
	for _, name := range names {
		if id, ok := t.ID(name); ok && t.IsSpecial(id) {
			found = append(found, id)
		}
	}
	return found
}

// fileDigest is a SHA-256 over files, each as its name and contents with their lengths as little-endian u64
// before them.
type fileDigest struct{ h hash.Hash }

func newDigest() fileDigest { return fileDigest{sha256.New()} }

func (d fileDigest) hexSum() string { return hex.EncodeToString(d.h.Sum(nil)) }

func (d fileDigest) addFile(name string, contents []byte) {
	for _, part := range [][]byte{[]byte(name), contents} {
		d.h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		d.h.Write(part)
	}
}

// maxFile bounds the size of a file: ten times the largest tokenizers.
const maxFile = 256 << 20

// readAndAdd returns and digests the contents of a file, nil if it does not exist.
func (d fileDigest) readAndAdd(dir, name string) ([]byte, error) {
	contents, err := readFile(dir, name)
	if contents != nil {
		d.addFile(name, contents)
	}
	return contents, err
}

// readFile returns the contents of a file, nil if it does not exist.
func readFile(dir, name string) ([]byte, error) {
	path := filepath.Join(dir, name)
	// Opening a named pipe would wait for a writer.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, fault.New(fault.Invalid, "open tokenizer %s: not a regular file but of type %s", path, info.Mode().Type())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.New(fault.Internal, "open tokenizer: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.Internal, "open tokenizer: %w", err)
	}
	defer f.Close()
	contents, err := io.ReadAll(io.LimitReader(f, maxFile+1)) // never nil: an empty file is one
	if err != nil {
		return nil, fault.New(fault.Internal, "read tokenizer: %w", err)
	}
	if len(contents) > maxFile {
		return nil, fault.New(fault.TooLarge, "read tokenizer %s: larger than %d bytes", path, maxFile)
	}
	return contents, nil
}

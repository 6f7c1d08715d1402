package token

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"strings"

	"penstock/core/kv"
)

// tokenizerFile is a tokenizer.json. Truncation and padding are ignored on purpose: they are leftovers of
// training and not for a server to apply.
type tokenizerFile struct {
	AddedTokens   []fileAdded     `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         fileModel       `json:"model"`
}

type fileAdded struct {
	ID         kv.Token `json:"id"`
	Content    string   `json:"content"`
	SingleWord bool     `json:"single_word"`
	LStrip     bool     `json:"lstrip"`
	RStrip     bool     `json:"rstrip"`
	Normalized bool     `json:"normalized"`
	Special    bool     `json:"special"`
}

type fileModel struct {
	Type                    string          `json:"type"`
	Dropout                 float64         `json:"dropout"`
	ContinuingSubwordPrefix string          `json:"continuing_subword_prefix"`
	EndOfWordSuffix         string          `json:"end_of_word_suffix"`
	ByteFallback            bool            `json:"byte_fallback"`
	IgnoreMerges            bool            `json:"ignore_merges"`
	UnkToken                string          `json:"unk_token"`
	FuseUnk                 bool            `json:"fuse_unk"`
	UnkID                   *kv.Token       `json:"unk_id"`
	MaxInputCharsPerWord    *int            `json:"max_input_chars_per_word"`
	Vocab                   json.RawMessage `json:"vocab"`
	Merges                  []fileMerge     `json:"merges"`
}

// fileConfig is what a tokenizer_config.json can add. The tokens before a text are left to tokenizer.json:
// classes which override them keep the two equal.
type fileConfig struct {
	EOS   fileToken              `json:"eos_token"`
	Added map[kv.Token]fileAdded `json:"added_tokens_decoder"`
}

// fileToken is a token as its text, as an object with its content, or null.
type fileToken struct{ content string }

// UnmarshalJSON accepts the three spellings.
func (t *fileToken) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var long fileAdded
		err := json.Unmarshal(b, &long)
		t.content = long.Content
		return err
	}
	return json.Unmarshal(b, &t.content)
}

// fileMerge is a merge as "a b" or as ["a", "b"].
type fileMerge struct{ left, right string }

// UnmarshalJSON accepts both spellings.
func (m *fileMerge) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		var pair []string
		if err := json.Unmarshal(b, &pair); err != nil {
			return err
		}
		if len(pair) != 2 {
			return malformed("a merge has %d parts, not 2", len(pair))
		}
		m.left, m.right = pair[0], pair[1]
		return nil
	}
	var line string
	if err := json.Unmarshal(b, &line); err != nil {
		return err
	}
	return m.parseLine(line)
}

func (m *fileMerge) parseLine(line string) error {
	left, right, ok := strings.Cut(line, " ")
	if !ok || strings.Contains(right, " ") {
		return malformed("a merge is not two entries with one space between them")
	}
	m.left, m.right = left, right
	return nil
}

// componentConfig is one component of a stage: its type, and the union of the fields of the supported types.
type componentConfig struct {
	Type string `json:"type"`

	// Sequence, by the name that its kind of stage uses.
	Normalizers   []json.RawMessage `json:"normalizers"`
	PreTokenizers []json.RawMessage `json:"pretokenizers"`
	Processors    []json.RawMessage `json:"processors"`
	Decoders      []json.RawMessage `json:"decoders"`

	// Split
	Pattern  patternConfig `json:"pattern"`
	Behavior string        `json:"behavior"`
	Invert   bool          `json:"invert"`

	// ByteLevel
	AddPrefixSpace *bool `json:"add_prefix_space"`
	UseRegex       *bool `json:"use_regex"`

	// Digits
	IndividualDigits bool `json:"individual_digits"`

	// BertProcessing and RobertaProcessing: [NAME, ID]
	Cls *templatePair `json:"cls"`
	Sep *templatePair `json:"sep"`

	// Metaspace
	Replacement   string `json:"replacement"`
	PrependScheme string `json:"prepend_scheme"`
	Split         *bool  `json:"split"`

	// Normalizers
	Prepend             string `json:"prepend"`
	StripLeft           bool   `json:"strip_left"`
	StripRight          bool   `json:"strip_right"`
	CleanText           *bool  `json:"clean_text"`
	HandleChineseChars  *bool  `json:"handle_chinese_chars"`
	StripAccents        *bool  `json:"strip_accents"`
	Lowercase           *bool  `json:"lowercase"`
	PrecompiledCharsmap string `json:"precompiled_charsmap"`

	// Content belongs to Replace, in a normalizer or decoder, and to Strip.
	Content string `json:"content"`

	// Decoders
	Start   int    `json:"start"`
	Stop    int    `json:"stop"`
	Prefix  string `json:"prefix"`
	Cleanup bool   `json:"cleanup"`

	// TemplateProcessing
	Single        []templatePiece            `json:"single"`
	SpecialTokens map[string]templateSpecial `json:"special_tokens"`
}

type patternConfig struct {
	Regex  string
	String string
}

// templatePiece is {"SpecialToken": {"id": NAME}} or {"Sequence": {"id": "A"}}.
type templatePiece struct {
	SpecialToken *struct {
		ID string `json:"id"`
	}
	Sequence *struct {
		ID string `json:"id"`
	}
}

// templatePair is a token as ["[SEP]", 102].
type templatePair struct {
	name string
	id   kv.Token
}

// UnmarshalJSON reads the list of two.
func (p *templatePair) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&p.name, &p.id})
}

type templateSpecial struct {
	IDs []kv.Token `json:"ids"`
}

// parseComponents returns the components of a stage in order, with sequences flattened. A stage which is
// absent or null has none.
func parseComponents(raw json.RawMessage) ([]componentConfig, error) {
	return appendComponents(nil, raw, 0)
}

// maxNesting bounds nested sequences; real files have one level.
const maxNesting = 8

func appendComponents(dst []componentConfig, raw json.RawMessage, depth int) ([]componentConfig, error) {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return dst, nil
	}
	if depth > maxNesting {
		return nil, malformed("sequences are nested more than %d deep", maxNesting)
	}
	var s componentConfig
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, err
	}
	if s.Type != "Sequence" {
		return append(dst, s), nil
	}
	for _, list := range [][]json.RawMessage{s.Normalizers, s.PreTokenizers, s.Processors, s.Decoders} {
		for _, inner := range list {
			var err error
			if dst, err = appendComponents(dst, inner, depth+1); err != nil {
				return nil, err
			}
		}
	}
	return dst, nil
}

// The built-in vocabulary, made by tools/mkvocab. It is frozen: the weights of the built-in model belong to
// its ids.
var (
	//go:embed builtin/tokenizer.json
	builtinTokenizer string
	//go:embed builtin/tokenizer_config.json
	builtinConfig string
)

// Builtin returns the tokenizer of the built-in model: byte-level byte-pair encoding with Llama 3's
// pre-tokenizer, learnt from Penstock's own documents, and <|end|> as the end of text.
func Builtin() (*Tokenizer, error) {
	return Parse(BuiltinFiles())
}

// BuiltinFiles returns copies of the files of [Builtin], for digests or for writing out.
func BuiltinFiles() (tokenizer, config []byte) {
	return []byte(builtinTokenizer), []byte(builtinConfig)
}

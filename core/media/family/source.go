package family

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"penstock/core/kv"
	"penstock/core/media"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 8 << 20

// configSource is a checkpoint's configuration while a family is created from it. The first error stays in
// err, and values read after it are meaningless, so that families can be written without an error check in
// each line.
type source struct {
	config    object
	image     object // the image processor
	video     object // the video processor
	audio     object // the feature extractor
	processor object // the processor's own settings

	vocabulary Vocabulary
	serving    Serving
	arguments  []argument // of serving
	err        *UnsupportedError
}

// jsonObject is a JSON object of a file.
type object struct {
	where  string // file and path, for errors
	fields map[string]json.RawMessage
	asked  map[string]bool // the keys which a rule read; nil if not recorded
}

func (o object) missing() bool { return o.fields == nil }

// has reports whether there is a value other than null.
func (o object) has(key string) bool {
	if o.asked != nil {
		o.asked[key] = true
	}
	v, ok := o.fields[key]
	return ok && !bytes.Equal(v, []byte("null"))
}

// readFiles parses the files and finds the processors in them, as transformers does: an entry in
// processor_config.json under the name of a processor overrides that processor's own file, and a video
// processor without either uses the file of the image processor.
func read(f Files, v Vocabulary) *source {
	s := &source{vocabulary: v}
	s.config = s.parse("config.json", f.Config)
	s.processor = s.parse("processor_config.json", f.Processor)
	own := s.parse("preprocessor_config.json", f.Preprocessor)
	video := s.parse("video_preprocessor_config.json", f.VideoPreprocessor)
	s.image = s.first(s.object(s.processor, "image_processor"), own)
	s.video = s.first(s.object(s.processor, "video_processor"), video, own)
	s.audio = s.first(s.object(s.processor, "feature_extractor"), own)
	return s
}

func (s *source) fail(o object, key, format string, args ...any) {
	if s.err == nil {
		s.err = unsupported("%s of %s %s", key, o.where, fmt.Sprintf(format, args...))
	}
}

func (s *source) parse(name string, b []byte) object {
	o := object{where: name}
	if b == nil || s.err != nil {
		return o
	}
	if len(b) > maxFile {
		s.err = unsupported("%s has more than %d bytes", name, maxFile)
		return o
	}
	if err := json.Unmarshal(b, &o.fields); err != nil {
		s.err = unsupported("%s is no JSON object", name)
	}
	return o
}

// firstPresent returns the first object which exists.
func (s *source) first(of ...object) object {
	if i := slices.IndexFunc(of, func(o object) bool { return !o.missing() }); i >= 0 {
		return of[i]
	}
	return of[len(of)-1]
}

// getObject returns the object under a key of o; a missing one if there is none.
func (s *source) object(o object, key string) object {
	in := object{where: o.where + " " + key}
	if o.has(key) {
		if err := json.Unmarshal(o.fields[key], &in.fields); err != nil {
			s.fail(o, key, "is no object")
		}
	}
	return in
}

// getNumber returns a whole number of o, at least low; def if there is none.
func (s *source) number(o object, key string, low, def int64) int64 {
	if !o.has(key) {
		return def
	}
	var n int64
	if err := json.Unmarshal(o.fields[key], &n); err != nil || n < low || n > maxNumber {
		s.fail(o, key, "is no whole number from %d to %d", low, int64(maxNumber))
		return low
	}
	return n
}

// getReal returns a positive number of o; def if there is none.
func (s *source) real(o object, key string, def float64) float64 {
	if !o.has(key) {
		return def
	}
	var x float64
	if err := json.Unmarshal(o.fields[key], &x); err != nil || x <= 0 || x > maxNumber {
		s.fail(o, key, "is no positive number up to %d", int64(maxNumber))
		return def
	}
	return x
}

// maxNumber bounds the whole numbers of configurations, so that products of a few of them and a size do not
// overflow.
const maxNumber = 1 << 40

// requireNumber returns a required whole number, at least low.
func (s *source) needed(o object, key string, low int64) int64 {
	if !o.has(key) {
		s.fail(o, key, "is missing, so that the model's limits are not known")
		return low
	}
	return s.number(o, key, low, low)
}

// getFlag returns a boolean of o; def if there is none.
func (s *source) flag(o object, key string, def bool) bool {
	if !o.has(key) {
		return def
	}
	var b bool
	if err := json.Unmarshal(o.fields[key], &b); err != nil {
		s.fail(o, key, "is neither true nor false")
	}
	return b
}

// getText returns a string of o; def if there is none.
func (s *source) text(o object, key, def string) string {
	if !o.has(key) {
		return def
	}
	var t string
	if err := json.Unmarshal(o.fields[key], &t); err != nil {
		s.fail(o, key, "is no string")
	}
	return t
}

// getTexts returns a list of strings of o.
func (s *source) texts(o object, key string) []string {
	if !o.has(key) {
		return nil
	}
	var t []string
	if err := json.Unmarshal(o.fields[key], &t); err != nil {
		s.fail(o, key, "is no list of strings")
	}
	return t
}

// getPairs returns a list of lists of numbers of o.
func (s *source) pairs(o object, key string) [][]int64 {
	if !o.has(key) {
		return nil
	}
	var p [][]int64
	if err := json.Unmarshal(o.fields[key], &p); err != nil {
		s.fail(o, key, "is no list of pairs of numbers")
	}
	return p
}

// findToken returns the token whose id one of keys of config.json gives, otherwise the one with this text
// in the vocabulary.
func (s *source) token(text string, keys ...string) kv.Token {
	for _, key := range keys {
		if s.config.has(key) {
			id := s.number(s.config, key, 0, 0)
			if id > math.MaxUint32 {
				s.fail(s.config, key, "is no token")
			}
			return kv.Token(id)
		}
	}
	if s.vocabulary != nil {
		if t, ok := s.vocabulary.ID(text); ok {
			return t
		}
	}
	if s.err == nil {
		s.err = unsupported("neither config.json nor the vocabulary has the token %s", text)
	}
	return 0
}

// findEncoder returns the function which encodes text.
func (s *source) encoder() func(string) []kv.Token {
	if e, ok := s.vocabulary.(Encoder); ok {
		return e.Tokens
	}
	if s.err == nil {
		s.err = unsupported("text stands between the frames of a video, and there is no tokenizer to encode it")
	}
	return nil
}

// addOptional adds a kind of media which the family can do without: if its settings are missing or not
// modelled, the family records that for the kind and supports the others.
func (s *source) optional(f *Family, k media.Kind, make func() *medium) {
	if s.err != nil {
		return
	}
	m := make()
	if s.err != nil {
		f.without[k] = s.err.Detail
		s.err = nil
		return
	}
	f.mediums[k] = m
}

// requireLibraryProcessor refuses a processor which is code of the checkpoint.
func (s *source) ofTheLibrary(o object) {
	if o.has("auto_map") {
		s.fail(o, "auto_map", "says that the processor is the checkpoint's own, which is not modelled")
	}
}

// requireFlag refuses a flag whose value is not the modelled one.
func (s *source) is(o object, key string, want bool) {
	if s.flag(o, key, want) != want {
		s.fail(o, key, "is %t, which is not modelled", !want)
	}
}

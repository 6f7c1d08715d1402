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
type configSource struct {
	config    jsonObject
	image     jsonObject // the image processor
	video     jsonObject // the video processor
	audio     jsonObject // the feature extractor
	processor jsonObject // the processor's own settings

	vocabulary Vocabulary
	serving    Serving
	arguments  []processorArg // of serving
	err        *UnsupportedError
}

// jsonObject is a JSON object of a file.
type jsonObject struct {
	where    string // file and path, for errors
	fields   map[string]json.RawMessage
	readKeys map[string]bool // the keys which a rule read; nil if not recorded
}

func (o jsonObject) isMissing() bool { return o.fields == nil }

// has reports whether there is a value other than null.
func (o jsonObject) has(key string) bool {
	if o.readKeys != nil {
		o.readKeys[key] = true
	}
	v, ok := o.fields[key]
	return ok && !bytes.Equal(v, []byte("null"))
}

// readFiles parses the files and finds the processors in them, as transformers does: an entry in
// processor_config.json under the name of a processor overrides that processor's own file, and a video
// processor without either uses the file of the image processor.
func readFiles(f CheckpointFiles, v Vocabulary) *configSource {
	s := &configSource{vocabulary: v}
	s.config = s.parseObject("config.json", f.Config)
	s.processor = s.parseObject("processor_config.json", f.Processor)
	own := s.parseObject("preprocessor_config.json", f.Preprocessor)
	video := s.parseObject("video_preprocessor_config.json", f.VideoPreprocessor)
	s.image = s.firstPresent(s.getObject(s.processor, "image_processor"), own)
	s.video = s.firstPresent(s.getObject(s.processor, "video_processor"), video, own)
	s.audio = s.firstPresent(s.getObject(s.processor, "feature_extractor"), own)
	return s
}

func (s *configSource) failKey(o jsonObject, key, format string, args ...any) {
	if s.err == nil {
		s.err = newUnsupported("%s of %s %s", key, o.where, fmt.Sprintf(format, args...))
	}
}

func (s *configSource) parseObject(name string, b []byte) jsonObject {
	o := jsonObject{where: name}
	if b == nil || s.err != nil {
		return o
	}
	if len(b) > maxFile {
		s.err = newUnsupported("%s has more than %d bytes", name, maxFile)
		return o
	}
	if err := json.Unmarshal(b, &o.fields); err != nil {
		s.err = newUnsupported("%s is no JSON object", name)
	}
	return o
}

// firstPresent returns the first object which exists.
func (s *configSource) firstPresent(of ...jsonObject) jsonObject {
	if i := slices.IndexFunc(of, func(o jsonObject) bool { return !o.isMissing() }); i >= 0 {
		return of[i]
	}
	return of[len(of)-1]
}

// getObject returns the object under a key of o; a missing one if there is none.
func (s *configSource) getObject(o jsonObject, key string) jsonObject {
	in := jsonObject{where: o.where + " " + key}
	if o.has(key) {
		if err := json.Unmarshal(o.fields[key], &in.fields); err != nil {
			s.failKey(o, key, "is no object")
		}
	}
	return in
}

// getNumber returns a whole number of o, at least low; def if there is none.
func (s *configSource) getNumber(o jsonObject, key string, low, def int64) int64 {
	if !o.has(key) {
		return def
	}
	var n int64
	if err := json.Unmarshal(o.fields[key], &n); err != nil || n < low || n > maxNumber {
		s.failKey(o, key, "is no whole number from %d to %d", low, int64(maxNumber))
		return low
	}
	return n
}

// getReal returns a positive number of o; def if there is none.
func (s *configSource) getReal(o jsonObject, key string, def float64) float64 {
	if !o.has(key) {
		return def
	}
	var x float64
	if err := json.Unmarshal(o.fields[key], &x); err != nil || x <= 0 || x > maxNumber {
		s.failKey(o, key, "is no positive number up to %d", int64(maxNumber))
		return def
	}
	return x
}

// maxNumber bounds the whole numbers of configurations, so that products of a few of them and a size do not
// overflow.
const maxNumber = 1 << 40

// requireNumber returns a required whole number, at least low.
func (s *configSource) requireNumber(o jsonObject, key string, low int64) int64 {
	if !o.has(key) {
		s.failKey(o, key, "is missing, so that the model's limits are not known")
		return low
	}
	return s.getNumber(o, key, low, low)
}

// getFlag returns a boolean of o; def if there is none.
func (s *configSource) getFlag(o jsonObject, key string, def bool) bool {
	if !o.has(key) {
		return def
	}
	var b bool
	if err := json.Unmarshal(o.fields[key], &b); err != nil {
		s.failKey(o, key, "is neither true nor false")
	}
	return b
}

// getText returns a string of o; def if there is none.
func (s *configSource) getText(o jsonObject, key, def string) string {
	if !o.has(key) {
		return def
	}
	var t string
	if err := json.Unmarshal(o.fields[key], &t); err != nil {
		s.failKey(o, key, "is no string")
	}
	return t
}

// getTexts returns a list of strings of o.
func (s *configSource) getTexts(o jsonObject, key string) []string {
	if !o.has(key) {
		return nil
	}
	var t []string
	if err := json.Unmarshal(o.fields[key], &t); err != nil {
		s.failKey(o, key, "is no list of strings")
	}
	return t
}

// getPairs returns a list of lists of numbers of o.
func (s *configSource) getPairs(o jsonObject, key string) [][]int64 {
	if !o.has(key) {
		return nil
	}
	var p [][]int64
	if err := json.Unmarshal(o.fields[key], &p); err != nil {
		s.failKey(o, key, "is no list of pairs of numbers")
	}
	return p
}

// findToken returns the token whose id one of keys of config.json gives, otherwise the one with this text
// in the vocabulary.
func (s *configSource) findToken(text string, keys ...string) kv.Token {
	for _, key := range keys {
		if s.config.has(key) {
			id := s.getNumber(s.config, key, 0, 0)
			if id > math.MaxUint32 {
				s.failKey(s.config, key, "is no token")
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
		s.err = newUnsupported("neither config.json nor the vocabulary has the token %s", text)
	}
	return 0
}

// findEncoder returns the function which encodes text.
func (s *configSource) findEncoder() func(string) []kv.Token {
	if e, ok := s.vocabulary.(Encoder); ok {
		return e.Tokens
	}
	if s.err == nil {
		s.err = newUnsupported("text stands between the frames of a video, and there is no tokenizer to encode it")
	}
	return nil
}

// addOptional adds a kind of media which the family can do without: if its settings are missing or not
// modelled, the family records that for the kind and supports the others.
func (s *configSource) addOptional(f *Family, k media.Kind, make func() *mediaRules) {
	if s.err != nil {
		return
	}
	m := make()
	if s.err != nil {
		f.whyMissing[k] = s.err.Detail
		s.err = nil
		return
	}
	f.rules[k] = m
}

// requireLibraryProcessor refuses a processor which is code of the checkpoint.
func (s *configSource) requireLibraryProcessor(o jsonObject) {
	if o.has("auto_map") {
		s.failKey(o, "auto_map", "says that the processor is the checkpoint's own, which is not modelled")
	}
}

// requireFlag refuses a flag whose value is not the modelled one.
func (s *configSource) requireFlag(o jsonObject, key string, want bool) {
	if s.getFlag(o, key, want) != want {
		s.failKey(o, key, "is %t, which is not modelled", !want)
	}
}

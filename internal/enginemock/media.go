package enginemock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
	"penstock/internal/media/pixel"
	"penstock/internal/media/probe"
)

// Fetch returns the content of an http or https URL.
type Fetch func(ctx context.Context, url string) ([]byte, error)

// contentPart is a part of a message.
type contentPart struct {
	Type  string    `json:"type"`
	Text  string    `json:"text"`
	UUID  *string   `json:"uuid"`
	Image *mediaURL `json:"image_url"`
	Video *mediaURL `json:"video_url"`
	Audio *mediaURL `json:"audio_url"`
	Input *struct {
		Data   string `json:"data"`
		Format string `json:"format"`
	} `json:"input_audio"`
}

// mediaURL is the URL of an object: {"url":…} or the URL alone.
type mediaURL struct{ URL string }

// UnmarshalJSON implements json.Unmarshaler.
func (a *mediaURL) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &a.URL)
	}
	var in struct {
		URL string `json:"url"`
	}
	err := json.Unmarshal(b, &in)
	a.URL = in.URL
	return err
}

// mediaSource returns the kind of media which a part contains, and its URL.
func (p *contentPart) mediaSource() (kind media.Kind, url string, ok bool) {
	at := func(kind media.Kind, a *mediaURL) (media.Kind, string, bool) {
		if a == nil {
			return kind, "", true
		}
		return kind, a.URL, true
	}
	switch p.Type {
	case "image_url":
		return at(media.Image, p.Image)
	case "video_url":
		return at(media.Video, p.Video)
	case "audio_url":
		return at(media.Audio, p.Audio)
	case "input_audio":
		if p.Input == nil {
			return media.Audio, "", true
		}
		return media.Audio, "data:audio/" + p.Input.Format + ";base64," + p.Input.Data, true
	}
	return 0, "", false
}

// mediaRef is a media object which a request refers to.
type mediaRef struct {
	kind media.Kind
	url  string // "" if the engine should have it cached
	uuid string // "" if the client gave none
}

// mediaInfo is what an engine's processor caches of an object.
type mediaInfo struct {
	kind media.Kind
	size media.Size
}

// promptMedia is a media object in a prompt, as an engine's cache knows it.
type promptMedia struct {
	id   string // as events name it
	kind media.Kind
	pad  kv.Token // fills its positions in a prompt
	// shown is the token which events show in its place.
	shown kv.Token
	grid  [3]int // of patches
}

// maxRemembered bounds the objects whose sizes are remembered by name.
const maxRemembered = 4096

// expandMedia replaces the template's placeholders with the layouts of media objects.
func (s *Server) expandMedia(ctx context.Context, p *prompt, want []mediaRef, hashes []string) error {
	if len(want) == 0 {
		return nil
	}
	f := s.cfg.Pipe.Family
	var placed []media.PromptObject
	counts := [media.Audio + 1]int{}
	for i, w := range want {
		counts[w.kind]++
		if limit := s.mediaLimit(w.kind); counts[w.kind] > limit {
			return fault.New(fault.Invalid, "At most %d %s(s) may be provided in one prompt. (parameter=%s)", limit, w.kind, w.kind)
		}
		k, content, err := s.inspectMedia(ctx, &w, counts[w.kind]-1)
		if err != nil {
			return err
		}
		l, err := s.media.layoutOf(w.kind, k.size)
		if err != nil {
			return fault.New(fault.Invalid, "Failed to apply the processor to %s %d: %v", w.kind, counts[w.kind]-1, err)
		}
		id := s.identifyMedia(&w, content)
		hash, _ := kv.MediaHash(id)
		if i < len(hashes) { // SGLang's, which its caller computed
			if hash, err = strconv.ParseUint(hashes[i][:min(len(hashes[i]), 16)], 16, 64); err != nil {
				return fault.New(fault.Invalid, "mm_hashes[%d] is not hexadecimal", i)
			}
		}
		placeholder, _ := f.Placeholder(w.kind)
		placed = append(placed, media.PromptObject{Placeholder: placeholder, Key: media.Key{Hash: hash}, Layout: l})
		pad, _ := f.PadToken(w.kind)
		shown := pad
		if s.dialect.showMedia != nil {
			shown = s.dialect.showMedia(s, pad, hash)
		}
		p.objects = append(p.objects, promptMedia{id: id, kind: w.kind, pad: pad, shown: shown, grid: l.Grid})
	}
	tokens, places, err := media.ExpandPrompt(nil, nil, p.tokens, f.Placeholders(), placed, media.MaxExpanded)
	if err != nil {
		return fault.New(fault.Invalid, "Failed to apply prompt replacement: %v", err)
	}
	p.tokens, p.media = tokens, places
	return nil
}

// mediaLimit is how many objects of a kind a prompt may contain.
func (s *Server) mediaLimit(kind media.Kind) int {
	if !s.cfg.Pipe.Family.Supports(kind) {
		return 0
	}
	if n, set := s.cfg.MediaLimits[kind]; set {
		return n
	}
	return 999
}

// inspectMedia returns an object's size and content.
func (s *Server) inspectMedia(ctx context.Context, w *mediaRef, index int) (k mediaInfo, content []byte, err error) {
	if w.url == "" {
		s.mu.Lock()
		k, ok := s.mu.remembered[w.uuid]
		s.mu.Unlock()
		if !ok || w.uuid == "" || k.kind != w.kind {
			return k, nil, fault.New(fault.Invalid, "Cache miss for %s at index %d but data is not provided.", w.kind, index)
		}
		return k, nil, nil
	}
	k.kind = w.kind
	files, err := s.loadFiles(ctx, w.url)
	if err != nil {
		return k, nil, fault.New(fault.Invalid, "Failed to load %s: %v", w.kind, err)
	}
	info, err := probe.ReadHeader(files[0])
	if err != nil {
		return k, nil, fault.New(fault.Invalid, "Failed to load %s: cannot identify %s file: %v", w.kind, w.kind, err)
	}
	k.size = s.media.mediaSize(w.kind, &info, len(files))
	if w.kind == media.Video && info.Format == probe.GIF { // its header does not contain the number of frames
		if _, k.size, err = pixel.DecodeFrames(files[0], pixel.Limits{}); err != nil {
			return k, nil, fault.New(fault.Invalid, "Failed to load %s: %v", w.kind, err)
		}
	}
	for _, file := range files {
		content = append(content, file...)
	}
	if w.uuid != "" {
		s.mu.Lock()
		if len(s.mu.remembered) >= maxRemembered {
			clear(s.mu.remembered)
		}
		s.mu.remembered[w.uuid] = k
		s.mu.Unlock()
	}
	return k, content, nil
}

// loadFiles returns the content of a URL; several files for a video given as images.
func (s *Server) loadFiles(ctx context.Context, url string) ([][]byte, error) {
	rest, isData := strings.CutPrefix(url, "data:")
	if !isData {
		if s.cfg.Fetch == nil {
			return nil, fault.New(fault.Invalid, "this server fetches nothing")
		}
		file, err := s.cfg.Fetch(ctx, url)
		return [][]byte{file}, err
	}
	kind, text, ok := strings.Cut(rest, ",")
	if !ok || !strings.HasSuffix(kind, ";base64") {
		return nil, fault.New(fault.Invalid, "Only base64 data URLs are supported for now.")
	}
	texts := []string{text}
	if strings.HasPrefix(kind, "video/jpeg") {
		texts = strings.Split(text, ",")
	}
	var files [][]byte
	for _, text := range texts {
		file, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// identifyMedia returns the name by which the engine's cache knows an object: the client's UUID, else a
// digest.
func (s *Server) identifyMedia(w *mediaRef, content []byte) string {
	if w.uuid != "" && s.cfg.Features.UUIDs.isOn(!s.dialect.noUUIDs) {
		return w.uuid
	}
	h := sha256.New()
	h.Write([]byte(s.cfg.Root + "\x00" + w.kind.String() + "\x00"))
	h.Write(content)
	if len(content) == 0 {
		h.Write([]byte(w.uuid))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// eventTokens returns the tokens of a prompt as events show them.
func (p *prompt) eventTokens() []kv.Token {
	if len(p.objects) == 0 {
		return p.tokens
	}
	view := append([]kv.Token(nil), p.tokens...)
	for i, m := range p.media {
		for at := m.Start; at < m.End; at++ {
			if view[at] == p.objects[i].pad {
				view[at] = p.objects[i].shown
			}
		}
	}
	return view
}

// readParts reads the content of a message that is a list of parts.
func (s *Server) readParts(content []byte, m *prep.Message, c *prep.Chat, want *[]mediaRef) error {
	var parts []contentPart
	if err := json.Unmarshal(content, &parts); err != nil {
		return fault.New(fault.Invalid, "content must be a text or a list of parts")
	}
	out := []byte{'['}
	for i := range parts {
		part := &parts[i]
		if part.Type == "text" {
			out = prep.AppendTextPart(out, part.Text)
			continue
		}
		kind, url, ok := part.mediaSource()
		if !ok || s.cfg.Pipe.Family == nil {
			return fault.New(fault.Invalid, "the model is not a multimodal model: a part of type %.40q", part.Type)
		}
		if !s.cfg.Pipe.Family.Supports(kind) {
			return fault.New(fault.Invalid, "At most 0 %s(s) may be provided in one prompt. (parameter=%s)", kind, kind)
		}
		w := mediaRef{kind: kind, url: url}
		if part.UUID != nil {
			w.uuid = *part.UUID
		}
		*want = append(*want, w)
		out = prep.AppendMediaPart(out, kind)
		c.Media = append(c.Media, prep.Media{Kind: kind, URL: url})
	}
	m.Parts = append(out, ']')
	return nil
}

// byPlace sorts the media of a prompt by their starts.
type byPlace prompt

func (p *byPlace) Len() int           { return len(p.media) }
func (p *byPlace) Less(i, j int) bool { return p.media[i].Start < p.media[j].Start }
func (p *byPlace) Swap(i, j int) {
	p.media[i], p.media[j] = p.media[j], p.media[i]
	p.objects[i], p.objects[j] = p.objects[j], p.objects[i]
}

// mediaKey names a media object in an event about a block.
type mediaKey struct {
	id     string
	offset int // start of the object, in tokens from the start of the block
}

// contentHash is the digest of an object's content; it depends on its id.
func (k *mediaKey) contentHash() string {
	sum := sha256.Sum256([]byte("content of " + k.id))
	return hex.EncodeToString(sum[:])
}

// keysIn are the objects which reach into a range of a prompt. p may be nil.
func (p *prompt) keysIn(from, to int) (keys []mediaKey) {
	if p == nil {
		return nil
	}
	for i, m := range p.media {
		if m.Start < to && m.End > from {
			keys = append(keys, mediaKey{p.objects[i].id, m.Start - from})
		}
	}
	return keys
}

// featuresBody describes the media of a prompt as vLLM does; null if it has none.
func (p *prompt) featuresBody(payload bool) any {
	if len(p.media) == 0 {
		return nil
	}
	hashes, places, data := map[string][]string{}, map[string][]object{}, map[string][]string{}
	for i, m := range p.media {
		kind := p.objects[i].kind.String()
		hashes[kind] = append(hashes[kind], p.objects[i].id)
		places[kind] = append(places[kind], object{"offset": m.Start, "length": m.End - m.Start})
		data[kind] = append(data[kind], base64.StdEncoding.EncodeToString(make([]byte, processedSize*(m.End-m.Start))))
	}
	o := object{"mm_hashes": hashes, "mm_placeholders": places, "kwargs_data": nil, "mm_metadata": nil}
	if payload {
		o["kwargs_data"] = data
	}
	return o
}

// processedSize is how many bytes a processor makes for each position in a prompt: Qwen2-VL's 4 patches of 2 times 14
// by 14 pixels of 3 colors, in 2 bytes each.
const processedSize = 4 * 2 * 14 * 14 * 3 * 2

// Processed returns how many requests the server accepted whose media another server had processed.
func (s *Server) Processed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.processed
}

// checkFeatures checks the features of a request for tokens, or answers as vLLM does if it cannot use them.
// vLLM notices missing data of one object only after the stream has started.
func (s *Server) checkFeatures(w http.ResponseWriter, g *generateRequest) bool {
	if g.Features == nil {
		return true
	}
	x, hit := s.faults.takeDue(FaultFeatures)
	if hit {
		s.refuseRequest(w, cmp.Or(x.Status, http.StatusInternalServerError), "invalid load key")
		return false
	}
	for modality, places := range g.Features.Places {
		data := g.Features.Data[modality]
		if len(g.Features.Hashes[modality]) != len(places) || data != nil && len(data) != len(places) {
			s.refuseRequest(w, http.StatusBadRequest, modality+" mm_hashes and mm_placeholders must have the same length")
			return false
		}
		for i, at := range places {
			switch {
			case data == nil || data[i] == nil:
				s.refuseDataless(w, g.Stream)
				return false
			case at.Offset < 0 || at.Length <= 0 || at.Offset > len(g.Tokens)-at.Length:
				s.refuseRequest(w, http.StatusBadRequest, "mm_placeholders must remain within the token_ids sequence")
				return false
			}
			if b, err := base64.StdEncoding.DecodeString(*data[i]); err != nil || len(b) != processedSize*at.Length {
				s.refuseRequest(w, http.StatusInternalServerError, "the data of an object is of another shape")
				return false
			}
		}
	}
	s.mu.Lock()
	s.mu.processed++
	s.mu.Unlock()
	return true
}

// refuseDataless answers features without the data of an object that is in no cache.
func (s *Server) refuseDataless(w http.ResponseWriter, stream bool) { s.failRequest(w, stream) }

// failRequest answers as vLLM does to a request which fails before its first token.
func (s *Server) failRequest(w http.ResponseWriter, stream bool) {
	const status, message = http.StatusInternalServerError, "Internal server error"
	if !stream {
		s.refuseRequest(w, status, message)
		return
	}
	st := newSSEStream(w)
	st.writeEvent(s.streamError(status, message))
	st.writeDone()
}

// acceptsMedia reports whether the model accepts media of a kind.
func (s *Server) acceptsMedia(kind media.Kind) bool {
	return s.cfg.Pipe != nil && s.cfg.Pipe.Family != nil && s.cfg.Pipe.Family.Supports(kind)
}

// mediaLoader computes the tokens of media as the mocked engine's loader does.
type mediaLoader struct {
	features *Features
	family   *family.Family
	// direct counts a loader that passes on all frames, for features that are off.
	direct *family.Family
}

// newMediaLoader makes the pipeline of c count media as the mocked engine does.
func (c *Config) newMediaLoader(loader family.Loader) *mediaLoader {
	if c.Pipe == nil {
		return nil
	}
	l := &mediaLoader{features: &c.Features, direct: c.Pipe.ForServing(family.Serving{ProcessorArgs: c.ProcessorArgs}).Family}
	c.Pipe = c.Pipe.ForServing(family.Serving{ProcessorArgs: c.ProcessorArgs, Loader: loader})
	l.family = c.Pipe.Family
	return l
}

// layoutOf returns the layout of an object's tokens.
func (l *mediaLoader) layoutOf(kind media.Kind, size media.Size) (media.Layout, error) {
	sampled := l.features.Sampling
	if size.Sequence {
		sampled = l.features.Sequences
	}
	if kind == media.Video && !sampled.isOn(true) {
		return l.direct.Layout(kind, size)
	}
	return l.family.Layout(kind, size)
}

// mediaSize returns an object's size from the header of its first file.
func (l *mediaLoader) mediaSize(kind media.Kind, info *probe.Info, files int) media.Size {
	size := info.Size
	switch {
	case kind == media.Video:
		size.Frames, size.Sequence = max(size.Frames, files), info.Format == probe.JPEG
	case kind == media.Audio && !l.features.RoundUp.isOn(true) && info.Rate > 0:
		size.Samples = int(info.Frames * probe.ModelRate / int64(info.Rate))
	}
	return size
}

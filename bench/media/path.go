package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/media/fetch"
)

const (
	width, height = 1280, 720
	blockSize     = 16
	maxFile       = 64 << 20
)

// pathRow is the cost of one request.
type pathRow struct {
	Pictures int     `json:"pictures"`
	Identity string  `json:"identity"`
	From     string  `json:"from"`
	Tokens   int     `json:"prompt_tokens"`
	Bytes    int     `json:"picture_bytes"`
	Micros   float64 `json:"us"`
	Standard float64 `json:"standard_library_us"`
	Text     float64 `json:"text_only_us"`
}

// measurePath measures all rows.
func (s *mediaSettings) measurePath(ctx context.Context) (rows []pathRow, err error) {
	p, err := openPipeline()
	if err != nil {
		return nil, err
	}
	shown, err := newPictureSet()
	if err != nil {
		return nil, err
	}
	defer shown.server.Close()
	fetcher, err := fetch.New(fetch.Config{AllowPrivate: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fetcher.Close()) }()
	for _, n := range []int{1, 4, 10} {
		row := pathRow{Pictures: n, Bytes: len(shown.files[0])}
		same := func() []string { return shown.data[:n] }
		row.Text, err = s.timeCall(same, func([]string) error { _, err := s.encodeOnce(ctx, prep.LocalEncoder{Pipeline: p}, nil); return err })
		if err != nil {
			return nil, err
		}
		if row.Standard, err = s.timeCall(same, readWithStdlib); err != nil {
			return nil, err
		}
		for _, identity := range []media.Identity{media.ByURL, media.ByBytes, media.ByPixels} {
			resolver, err := resolve.New(resolve.Config{Identity: identity, URLTTL: time.Hour}, resolve.NewFetcherSource(fetcher, maxFile), nil)
			if err != nil {
				return nil, err
			}
			local := prep.LocalEncoder{Pipeline: p, Media: resolver.ResolverFor(resolve.ModelOptions{})}
			for _, from := range shown.newOrigins(n) {
				row.Identity, row.From = string(identity), from.name
				row.Micros, err = s.timeCall(from.urls, func(urls []string) (err error) {
					row.Tokens, err = s.encodeOnce(ctx, local, urls)
					return err
				})
				if err != nil {
					return nil, fmt.Errorf("%d pictures by %s, %s: %w", n, identity, from.name, err)
				}
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

// pictureSet is the images of requests: as files, as data: URIs, and on a server.
type pictureSet struct {
	files  [][]byte
	data   []string
	server *httptest.Server
	serial int // of the requests with unseen images
}

func newPictureSet() (*pictureSet, error) {
	g := &pictureSet{}
	for i := range 10 {
		file, err := newPicture(uint8(i))
		if err != nil {
			return nil, err
		}
		g.files = append(g.files, file)
		g.data = append(g.data, dataURI(file))
	}
	// The last element of a path is the image; the rest makes the URL unique.
	g.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
		if err != nil || n < 0 || n >= len(g.files) {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(g.files[n]))
	}))
	return g, nil
}

func dataURI(file []byte) string {
	return "data:image/jpeg;base64," + base64.StdEncoding.EncodeToString(file)
}

// pictureOrigin is where requests get their images.
type pictureOrigin struct {
	name string
	urls func() []string // of the next request
}

// newOrigins returns the origins for requests with n images.
func (g *pictureSet) newOrigins(n int) []pictureOrigin {
	each := func(url func(i int) string) func() []string {
		return func() (urls []string) {
			g.serial++
			for i := range n {
				urls = append(urls, url(i))
			}
			return urls
		}
	}
	return []pictureOrigin{
		{"data:, seen", func() []string { return g.data[:n] }},
		{"data:, new", each(func(i int) string { // bytes after an image's end are not part of it
			return dataURI(strconv.AppendInt(slices.Clone(g.files[i]), int64(g.serial), 10))
		})},
		{"URL, new", each(func(i int) string { return fmt.Sprintf("%s/%d/%d", g.server.URL, g.serial, i) })},
		{"URL, seen", each(func(i int) string { return fmt.Sprintf("%s/seen/%d", g.server.URL, i) })},
	}
}

// openPipeline returns the pipeline of the built-in model, with the rules of Qwen2-VL's checkpoints.
func openPipeline() (*prep.Pipeline, error) {
	p, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		return nil, err
	}
	id, ok := p.Family.Placeholder(media.Image)
	if !ok {
		return nil, errors.New("the built-in model shows no pictures")
	}
	f, err := family.Open(family.CheckpointFiles{
		Config:       fmt.Appendf(nil, `{"model_type":"qwen2_vl","image_token_id":%d,"vision_config":{"patch_size":14,"spatial_merge_size":2}}`, id),
		Preprocessor: []byte(`{"image_processor_type":"Qwen2VLImageProcessor","patch_size":14,"merge_size":2,"temporal_patch_size":2,"min_pixels":3136,"max_pixels":12845056}`),
	}, p.Tokenizer)
	if err != nil {
		return nil, err
	}
	p.SetFamily(f)
	return p, nil
}

// encodeOnce makes the prompt of one request with its hashes, and returns its number of tokens.
func (s *mediaSettings) encodeOnce(ctx context.Context, encoder prep.LocalEncoder, urls []string) (int, error) {
	m := prep.Message{Role: "user", Content: question}
	c := &prep.Chat{AddGenerationPrompt: true}
	if len(urls) > 0 {
		m.Content, m.Parts = "", []byte{'['}
		for i, url := range urls {
			part := fmt.Sprintf("messages[0].content[%d]", i)
			c.Media = append(c.Media, prep.Media{Kind: media.Image, URL: url, Part: part, Param: part + ".image_url.url"})
			m.Parts = prep.AppendMediaPart(m.Parts, media.Image)
		}
		m.Parts = append(prep.AppendTextPart(m.Parts, question), ']')
	}
	c.Messages = []prep.Message{m}
	prompt, err := encoder.EncodeChat(ctx, c)
	if err != nil {
		return 0, err
	}
	if prompt.Release != nil {
		defer prompt.Release()
	}
	if prompt.TextOnlyReason != media.NoReason {
		return 0, fmt.Errorf("routed by text only: %s: %w", prompt.TextOnlyReason, prompt.TextOnlyError)
	}
	h, err := kv.NewHasher(blockSize, kv.Salt{})
	if err != nil {
		return 0, err
	}
	h.AppendSeqHashes(nil, prompt.Tokens, prompt.Media)
	return len(prompt.Tokens), nil
}

// question has about 64 tokens.
const question = `Compare these pictures with each other. Say for each what stands in the middle, which colours there are at its left
edge, whether anything is written on it, and if so what. Then say which two of them were probably taken at the same place, and why you think so.`

// readWithStdlib determines sizes and contents as a program without this one would.
func readWithStdlib(uris []string) error {
	for _, uri := range uris {
		file, err := base64.StdEncoding.DecodeString(uri[strings.IndexByte(uri, ',')+1:])
		if err != nil {
			return err
		}
		if _, _, err := image.DecodeConfig(bytes.NewReader(file)); err != nil {
			return err
		}
		_ = sha256.Sum256(file)
	}
	return nil
}

// timeCall returns the mean microseconds of do, over as many calls as there is time for. Making its argument
// is not timed.
func (s *mediaSettings) timeCall(with func() []string, do func([]string) error) (float64, error) {
	if err := do(with()); err != nil { // one-time work is done now
		return 0, err
	}
	var sum time.Duration
	n := 0
	for sum < s.each {
		urls := with()
		begin := time.Now()
		if err := do(urls); err != nil {
			return 0, err
		}
		sum += time.Since(begin)
		n++
	}
	return float64(sum.Nanoseconds()) / 1000 / float64(n), nil
}

// newPicture returns a JPEG of some 100 kB.
func newPicture(seed uint8) ([]byte, error) {
	img := image.NewYCbCr(image.Rect(0, 0, width, height), image.YCbCrSubsampleRatio420)
	state := uint32(seed) + 1
	for i := range img.Y {
		if i%7 == 0 {
			state = state*1664525 + 1013904223
		}
		img.Y[i] = uint8(i/width/3) + uint8(state>>28)
	}
	for i := range img.Cb {
		img.Cb[i], img.Cr[i] = uint8(i/(width/2))+seed, 128
	}
	var out bytes.Buffer
	err := jpeg.Encode(&out, img, &jpeg.Options{Quality: 80})
	return out.Bytes(), err
}

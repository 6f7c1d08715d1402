package media

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
	"penstock/internal/media/fetch"
	"penstock/internal/media/pixel"
	"penstock/internal/media/probe"
)

// words is a vocabulary of the built-in model's placeholders.
type words struct{}

func (words) ID(text string) (kv.Token, bool) {
	id, ok := map[string]kv.Token{"<|image|>": 1, "<|video|>": 2, "<|audio|>": 3}[text]
	return id, ok
}

func builtin(t *testing.T) *family.Family {
	t.Helper()
	f, err := family.OpenBuiltin(words{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// shelf is a source of files by URL. A URL of none hangs.
type shelf struct {
	files map[string][]byte
	mu    struct {
		sync.Mutex
		sizes, gets, out int
	}
}

func (s *shelf) find(ctx context.Context, url string) ([]byte, error) {
	if strings.Contains(url, "refused") {
		return nil, fault.New(fault.Forbidden, "its address is none that may be fetched from")
	}
	if strings.Contains(url, "busy") {
		return nil, fault.New(fault.Overloaded, "there is no memory for the file now: try again")
	}
	if strings.Contains(url, "mute") {
		return nil, &fault.Error{Code: fault.Invalid, Message: "its host did not answer in time", Err: context.DeadlineExceeded}
	}
	if strings.Contains(url, "missing") {
		return nil, fault.New(fault.Invalid, "its host answered with status 404")
	}
	if b, ok := s.files[url]; ok {
		return b, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *shelf) FetchSize(ctx context.Context, url string) (FileInfo, error) {
	s.mu.Lock()
	s.mu.sizes++
	s.mu.Unlock()
	b, err := s.find(ctx, url)
	if err != nil {
		return FileInfo{}, err
	}
	return s.ReadHeader(b)
}

func (s *shelf) FetchFile(ctx context.Context, url string) ([]byte, func(), error) {
	b, err := s.find(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.gets++
	s.mu.out++
	return b, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.out--
	}, nil
}

func (s *shelf) ParseData(uri string) ([]byte, error) {
	d, err := fetch.ParseData(uri, 1<<20)
	return d.Bytes, err
}

func (s *shelf) ReadHeader(file []byte) (FileInfo, error) { return fetcherSource{}.ReadHeader(file) }

// desk lends what it is given, and counts.
type desk struct {
	full bool
	mu   struct {
		sync.Mutex
		lent map[string][]byte
		n    int
	}
}

func (d *desk) Lend(data []byte) (string, func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return "", nil, errors.New("full")
	}
	if d.mu.lent == nil {
		d.mu.lent = map[string][]byte{}
	}
	d.mu.n++
	name := fmt.Sprint("place", d.mu.n)
	d.mu.lent[name] = bytes.Clone(data)
	return name, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.mu.lent, name)
	}, nil
}

func picture(w, h int, c color.RGBA) image.Image {
	p := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			p.Set(x, y, c)
		}
	}
	return p
}

func encoded(t testing.TB, as string, p image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	var err error
	switch as {
	case "png":
		err = png.Encode(&b, p)
	case "jpeg":
		err = jpeg.Encode(&b, p, nil)
	default:
		still := image.NewPaletted(p.Bounds(), color.Palette{color.White, color.Black})
		err = gif.EncodeAll(&b, &gif.GIF{Image: []*image.Paletted{still, still, still, still}, Delay: []int{10, 10, 10, 10}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func data(mime string, b []byte) string {
	return "data:" + mime + ";base64," + base64.StdEncoding.EncodeToString(b)
}

func shown(kind media.Kind, urls ...string) *prep.Chat {
	c := &prep.Chat{Namespace: "n"}
	for i, u := range urls {
		part := fmt.Sprintf("messages[0].content[%d]", i)
		c.Media = append(c.Media, prep.Media{Kind: kind, URL: u, Part: part, Param: part + ".image_url.url"})
	}
	return c
}

var red = color.RGBA{200, 0, 0, 255}

// TestIdentities: what counts as the same, and how much is fetched for it.
func TestIdentities(t *testing.T) {
	file := encoded(t, "png", picture(56, 84, red))
	again := append(bytes.Clone(file), 0) // another file of the same picture
	src := &shelf{files: map[string][]byte{"http://a/1": file, "http://a/2?sig=x": again}}
	now := time.Unix(1_700_000_000, 0)
	r, err := New(Config{URLTTL: time.Hour, Now: func() time.Time { return now }}, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	chat := shown(media.Image, "http://a/1", "http://a/2?sig=x", data("image/png", file))
	size := media.Size{Width: 56, Height: 84}
	tensor, _, err := pixel.DecodeImage(file, pixel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	pixels := pixel.ContentKey(media.Image, &tensor)
	for _, c := range []struct {
		identity media.Identity
		want     []media.Key
		gets     int
	}{
		{media.ByURL, []media.Key{
			media.URLKey("http://a/1", urlPeriod("http://a/1", now, time.Hour)),
			media.URLKey("http://a/2?sig=x", urlPeriod("http://a/2?sig=x", now, time.Hour)), media.BytesKey(file),
		}, 0},
		{media.ByBytes, []media.Key{media.BytesKey(file), media.BytesKey(again), media.BytesKey(file)}, 2},
		{media.ByPixels, []media.Key{pixels, pixels, pixels}, 2},
	} {
		src.mu.gets = 0
		objects, release, err := r.ResolverFor(ModelOptions{Identity: c.identity}).Resolve(t.Context(), chat, builtin(t))
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range objects {
			if o.Key != c.want[i] || o.Size != size || o.Source != chat.Media[i].URL || o.Part != chat.Media[i].Part || !o.Tensor.IsZero() {
				t.Errorf("%s: object %d is %+v, want the key %v", c.identity, i, o, c.want[i])
			}
		}
		if src.mu.gets != c.gets {
			t.Errorf("%s: %d files are fetched, want %d", c.identity, src.mu.gets, c.gets)
		}
		release()
	}
	if src.mu.out != 0 || r.memory.Used() != 0 {
		t.Errorf("%d files and %d bytes are held", src.mu.out, r.memory.Used())
	}
}

// TestPeriods: a URL's period lasts for its time, and those of others end at other times.
func TestPeriods(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	changes := map[time.Duration]int{}
	for i := range 50 {
		url := fmt.Sprint("http://a/", i)
		first, changed := urlPeriod(url, start, time.Hour), time.Duration(0)
		for d := time.Duration(0); d <= time.Hour; d += time.Minute {
			switch p := urlPeriod(url, start.Add(d), time.Hour); {
			case p == first && changed == 0:
			case p == first+1:
				if changed == 0 {
					changed = d
				}
			default:
				t.Fatalf("%s after %v: period %d, first %d", url, d, p, first)
			}
		}
		if changed == 0 {
			t.Errorf("%s shows the same for more than an hour", url)
		}
		changes[changed]++
		if urlPeriod(url, start, 0) != 0 {
			t.Error("a URL for ever has a period")
		}
	}
	if len(changes) < 20 {
		t.Errorf("50 URLs change at %d times only", len(changes))
	}
}

// TestNames: a client's name is the key, in its namespace.
func TestNames(t *testing.T) {
	src := &shelf{files: map[string][]byte{"http://a/1": encoded(t, "png", picture(56, 56, red))}}
	r, err := New(Config{}, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	chat := shown(media.Image, "http://a/1")
	chat.Media[0].Name = "mine"
	objects, release, err := r.ResolverFor(ModelOptions{}).Resolve(t.Context(), chat, builtin(t))
	if err != nil {
		t.Fatal(err)
	}
	release()
	unowned := shown(media.Image, "http://a/1")
	unowned.Media[0].Name, unowned.Namespace = "mine", ""
	ownerless, release, err := r.ResolverFor(ModelOptions{}).Resolve(t.Context(), unowned, builtin(t))
	if err != nil {
		t.Fatal(err)
	}
	release()
	if ownerless[0].Key != media.URLKey("http://a/1", 0) {
		t.Errorf("a name without an owner is %+v", ownerless[0])
	}
	if objects[0].Key != media.NameKey("n", "mine") || objects[0].Name != "mine" || objects[0].Identity != "" {
		t.Errorf("%+v", objects[0])
	}
}

// TestLargeTensors: what is large is lent, also for engines to which it could be sent, and sent if it cannot be.
func TestLargeTensors(t *testing.T) {
	src := &shelf{files: map[string][]byte{"http://a/1": encoded(t, "png", picture(200, 200, red))}}
	for _, full := range []bool{false, true} {
		d := &desk{full: full}
		r, err := New(Config{}, src, d)
		if err != nil {
			t.Fatal(err)
		}
		objects, release, err := r.ResolverFor(ModelOptions{Identity: media.ByPixels, Transfer: TransferNetwork}).Resolve(t.Context(), shown(media.Image, "http://a/1"), builtin(t))
		if err != nil {
			t.Fatal(err)
		}
		if o := objects[0]; (o.Tensor.Data != nil) != full || (o.Tensor.Place != "") == full || r.memory.Used() != 200*200*3 {
			t.Errorf("full %v: %d bytes, place %q, %d in use", full, len(o.Tensor.Data), o.Tensor.Place, r.memory.Used())
		}
		release()
		if r.memory.Used() != 0 || len(d.mu.lent) != 0 {
			t.Errorf("full %v: %d bytes are in use, %d lent", full, r.memory.Used(), len(d.mu.lent))
		}
	}
}

// TestTransfers: how what was decoded reaches an engine, and that all of it is given back.
func TestTransfers(t *testing.T) {
	file := encoded(t, "png", picture(28, 56, red))
	src := &shelf{files: map[string][]byte{"http://a/1": file}}
	tensor, _, err := pixel.DecodeImage(file, pixel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		transfer Transfer
		lender   *desk
		want     string
	}{
		{TransferOff, &desk{}, "off"},
		{"", &desk{}, "off"},
		{TransferNetwork, nil, "network"},
		{TransferNetwork, &desk{}, "network"}, // it is small
		{TransferShared, &desk{}, "lent"},
		{TransferShared, &desk{full: true}, "off"},
		{TransferShared, nil, "off"},
	} {
		var l Lender
		if c.lender != nil {
			l = c.lender
		}
		r, err := New(Config{}, src, l)
		if err != nil {
			t.Fatal(err)
		}
		objects, release, err := r.ResolverFor(ModelOptions{Identity: media.ByPixels, Transfer: c.transfer}).Resolve(t.Context(), shown(media.Image, "http://a/1"), builtin(t))
		if err != nil {
			t.Fatal(err)
		}
		o, got := objects[0], "off"
		switch {
		case o.Tensor.Data != nil:
			got = "network"
			if !bytes.Equal(o.Tensor.Data, tensor.Data) || r.memory.Used() != int64(len(tensor.Data)) {
				t.Errorf("%v: %d bytes, %d in use", c.transfer, len(o.Tensor.Data), r.memory.Used())
			}
		case o.Tensor.Place != "":
			got = "lent"
			if !bytes.Equal(c.lender.mu.lent[o.Tensor.Place], tensor.Data) || r.memory.Used() != int64(len(tensor.Data)) {
				t.Errorf("%v: lent are %d bytes, %d in use", c.transfer, len(c.lender.mu.lent[o.Tensor.Place]), r.memory.Used())
			}
		}
		if got != c.want || o.Source != "http://a/1" || o.Key != pixel.ContentKey(media.Image, &tensor) || o.Identity != media.ByPixels {
			t.Errorf("%q is sent by %s, want %s: %+v", c.transfer, got, c.want, o.Key)
		}
		release()
		release()
		if r.memory.Used() != 0 || src.mu.out != 0 || c.lender != nil && len(c.lender.mu.lent) != 0 {
			t.Errorf("%v: something is held: %d bytes", c.transfer, r.memory.Used())
		}
	}
}

// TestVideosAndSounds: what has more than one frame is counted by reading it.
func TestVideosAndSounds(t *testing.T) {
	moving := encoded(t, "gif", picture(56, 28, red))
	frame := base64.StdEncoding.EncodeToString(encoded(t, "jpeg", picture(56, 28, red)))
	src := &shelf{files: map[string][]byte{"http://a/v": moving}}
	r, err := New(Config{}, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	chat := shown(media.Video, "http://a/v", data("image/gif", moving), "data:video/jpeg;base64,"+frame+","+frame)
	for range 2 { // the second time it is remembered
		objects, release, err := r.ResolverFor(ModelOptions{}).Resolve(t.Context(), chat, builtin(t))
		if err != nil {
			t.Fatal(err)
		}
		release()
		if a, b, c := objects[0].Size, objects[1].Size, objects[2].Size; a.Frames != 4 || a != b || a.Rate != 10 || c.Frames != 2 || c.Width != 56 {
			t.Errorf("%+v %+v %+v", a, b, c)
		}
	}
	sound := wav(8000)
	objects, release, err := r.ResolverFor(ModelOptions{}).Resolve(t.Context(), shown(media.Audio, data("audio/wav", sound)), builtin(t))
	if err != nil || objects[0].Size.Samples != 16000 || objects[0].Key != media.BytesKey(sound) || objects[0].Identity != media.ByBytes {
		t.Errorf("%+v %v", objects, err)
	}
	release()
}

// wav is a second of silence at a rate.
func wav(rate int) []byte {
	b := []byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00")
	b = binary.LittleEndian.AppendUint32(b, uint32(rate))
	b = binary.LittleEndian.AppendUint32(b, uint32(2*rate))
	b = append(b, 2, 0, 16, 0)
	b = append(b, "data"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(2*rate))
	b = append(b, make([]byte, 2*rate)...)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-8))
	return b
}

// bomb is a PNG that claims a size and has no pixels.
func bomb(w, h uint32) []byte {
	head := append([]byte("IHDR"), make([]byte, 13)...)
	binary.BigEndian.PutUint32(head[4:], w)
	binary.BigEndian.PutUint32(head[8:], h)
	head[12], head[13] = 8, 2
	b := append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0d"), head...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(head))
	return append(b, "\x00\x00\x00\x01IDATx\x00\x00\x00\x00"...)
}

// TestNothingByHalves: one object that cannot be resolved takes the others with it, and what they
// hold is given back; the error names the part and says whether the engine may know better.
func TestNothingByHalves(t *testing.T) {
	good := encoded(t, "png", picture(28, 28, red))
	src := &shelf{files: map[string][]byte{"http://a/1": good, "http://a/bomb": bomb(60000, 60000), "http://a/junk": []byte("<html>")}}
	limits := pixel.Limits{Bytes: 4096, Pixels: 1 << 20}
	const refused = media.NoReason
	for _, c := range []struct {
		what, url string
		kind      media.Kind
		identity  media.Identity
		reason    media.Reason
		failure   encode.FailureKind
		says      string
	}{
		{"an address that is refused", "http://refused/", media.Image, media.ByURL, refused, encode.NotFailed, "none that may be fetched"},
		{"an address that is refused", "http://refused/", media.Image, media.ByPixels, refused, encode.NotFailed, "none that may be fetched"},
		{"a file that is not there", "http://missing/", media.Image, media.ByURL, media.DimensionsUnknown, encode.Unreachable, "404"},
		{"no image", "http://a/junk", media.Image, media.ByURL, media.DimensionsUnknown, encode.Corrupt, "known format"},
		{"no image", data("image/png", []byte("hello")), media.Image, media.ByBytes, media.DimensionsUnknown, encode.Corrupt, "known format"},
		{"a broken data: URI", "data:image/png;base64,%%%", media.Image, media.ByURL, refused, encode.NotFailed, "data: URI"},
		{"a large data: URI", data("image/png", make([]byte, 8000)), media.Image, media.ByURL, refused, encode.NotFailed, "a file may have 4096"},
		{"a bomb", "http://a/bomb", media.Image, media.ByPixels, refused, encode.NotFailed, "pixels"},
		{"a bomb in a data: URI", data("image/png", bomb(60000, 60000)), media.Image, media.ByPixels, refused, encode.NotFailed, "pixels"},
		{"a cut off image", data("image/png", bomb(100, 100)), media.Image, media.ByPixels, media.DimensionsUnknown, encode.Corrupt, "cannot be read"},
		{"a video of no known kind", data("video/mp4", []byte("\x00\x00\x00\x18ftypmp42")), media.Video, media.ByURL, media.DimensionsUnknown, encode.Corrupt, "cannot be read"},
		{"an image as a sound", data("image/png", good), media.Audio, media.ByURL, media.DimensionsUnknown, encode.Corrupt, "kind image and not audio"},
	} {
		lender := &desk{}
		r, err := New(Config{Limits: limits}, src, lender)
		if err != nil {
			t.Fatal(err)
		}
		chat := shown(media.Image, "http://a/1", c.url)
		chat.Media[1].Kind = c.kind
		way := ModelOptions{Identity: c.identity, Transfer: TransferShared}
		_, _, err = r.ResolverFor(way).Resolve(t.Context(), chat, builtin(t))
		var f *fault.Error
		var u *prep.UnresolvedError
		if !errors.As(err, &f) || f.Code != fault.Invalid || f.Param != "messages[0].content[1].image_url.url" || !strings.Contains(f.Message, c.says) {
			t.Errorf("%s by %s: %v, want a refusal that says %q", c.what, c.identity, err, c.says)
			continue
		}
		if got := errors.As(err, &u); got != (c.reason != refused) || got && (u.Reason != c.reason || u.Kind != c.failure) {
			t.Errorf("%s by %s: %v, want the reason %q and the failure %v", c.what, c.identity, err, c.reason, c.failure)
		}
		if len(lender.mu.lent) != 0 || src.mu.out != 0 || r.memory.Used() != 0 {
			t.Errorf("%s: something is held", c.what)
		}
	}
}

// TestCounts: more objects than are allowed are refused before anything is fetched.
func TestCounts(t *testing.T) {
	r, err := New(Config{MaxObjects: 2}, &shelf{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = r.ResolverFor(ModelOptions{}).Resolve(t.Context(), shown(media.Image, "http://a", "http://b", "http://c"), builtin(t))
	var u *prep.UnresolvedError
	var f *fault.Error
	if !errors.As(err, &f) || errors.As(err, &u) || f.Param != "messages[0].content[2]" {
		t.Error(err)
	}
}

// TestOrientation: where a family counts a turned picture otherwise, a size alone is not enough.
func TestOrientation(t *testing.T) {
	p := &prep.Media{Kind: media.Image, Param: "p"}
	found := FileInfo{Kind: media.Image, Size: media.Size{Width: 3, Height: 4}}
	var o media.Object
	o.Kind = media.Image
	if err := setObjectSize(builtin(t), p, found, &o); err != nil || o.Size != found.Size {
		t.Errorf("%+v %v", o, err)
	}
	f, err := family.Open(family.CheckpointFiles{
		Config:       []byte(`{"model_type":"llava","image_token_index":1,"vision_config":{"model_type":"pixtral","patch_size":16,"image_size":1540},"spatial_merge_size":2}`),
		Preprocessor: []byte(`{"image_processor_type":"PixtralImageProcessor","patch_size":{"height":16,"width":16},"size":{"longest_edge":1540}}`),
		Processor:    []byte(`{"patch_size":16,"spatial_merge_size":2,"image_token":"[IMG]","image_break_token":"[IMG_BREAK]","image_end_token":"[IMG_END]"}`),
	}, all{})
	if err != nil {
		t.Fatal(err)
	}
	var u *prep.UnresolvedError
	if err := setObjectSize(f, p, found, &o); !errors.As(err, &u) || u.Reason != media.OrientationUnknown {
		t.Errorf("%v (turned %v)", err, f.NeedsOrientation())
	}
	found.Oriented = true
	if err := setObjectSize(f, p, found, &o); err != nil {
		t.Error(err)
	}
}

// all is a vocabulary with every word.
type all struct{}

func (all) ID(text string) (kv.Token, bool) { return kv.Token(len(text)), true }

// TestTime: a host that says nothing is given up in time, and a client that goes away at once.
func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Config{Timeout: 3 * time.Second}, &shelf{files: map[string][]byte{"http://a/1": encoded(t, "png", picture(28, 28, red))}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		way := r.ResolverFor(ModelOptions{Identity: media.ByBytes})
		began := time.Now()
		_, _, err = way.Resolve(t.Context(), shown(media.Image, "http://a/1", "http://hangs"), builtin(t))
		var u *prep.UnresolvedError
		if !errors.As(err, &u) || u.Reason != media.DimensionsUnknown || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		_, _, err = way.Resolve(t.Context(), shown(media.Image, "http://a/1", "http://mute"), builtin(t))
		if !errors.As(err, &u) || !strings.Contains(u.Err.Message, "did not answer") || !strings.Contains(u.Err.Param, "content[1]") {
			t.Errorf("%v of a host with less patience", err)
		}
		gone, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		began = time.Now()
		if _, _, err = way.Resolve(gone, shown(media.Image, "http://hangs"), builtin(t)); !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		short, done := context.WithTimeout(t.Context(), time.Second)
		defer done()
		if _, _, err = way.Resolve(short, shown(media.Image, "http://hangs"), builtin(t)); !errors.As(err, &u) {
			t.Errorf("%v of a caller with less time", err)
		}
		if r.memory.Used() != 0 {
			t.Error("memory is held")
		}
	})
}

// TestSlowServers: a request which waits for servers takes no turn from one whose files are here.
func TestSlowServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Config{Parallel: 1, Timeout: time.Minute}, &shelf{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		way, eyes := r.ResolverFor(ModelOptions{Identity: media.ByPixels}), builtin(t)
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			go func() {
				if _, _, err := way.Resolve(ctx, shown(media.Image, "http://slow/"), eyes); !errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
			}()
		}
		synctest.Wait()
		_, release, err := way.Resolve(t.Context(), shown(media.Image, data("image/png", encoded(t, "png", picture(30, 30, red)))), eyes)
		if err != nil {
			t.Error(err)
		} else {
			release()
		}
		cancel()
	})
}

// TestRoom: requests that need more memory than there is wait for each other, and none for ever.
func TestRoom(t *testing.T) {
	file := encoded(t, "png", picture(100, 100, red))
	r, err := New(Config{Memory: 2 * pixel.DecodeMemory(media.Image, file, pixel.Limits{}), Timeout: time.Minute}, &shelf{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			objects, release, err := r.ResolverFor(ModelOptions{Identity: media.ByPixels}).Resolve(t.Context(), shown(media.Image, data("image/png", file), data("image/png", file)), builtin(t))
			if err != nil || objects[0].Key != objects[1].Key {
				t.Errorf("%v %v", objects, err)
				return
			}
			release()
		})
	}
	wait.Wait()
	if r.memory.Used() != 0 || r.files.Used() != 0 {
		t.Errorf("%d and %d bytes are held", r.memory.Used(), r.files.Used())
	}
}

// TestRoomOfVideos: the room for a video is that of all its frames, however short its file.
func TestRoomOfVideos(t *testing.T) {
	file := encoded(t, "gif", picture(40, 40, red))
	need := pixel.DecodeMemory(media.Video, file, pixel.Limits{})
	r, err := New(Config{Memory: 4 * need, Timeout: time.Minute}, &shelf{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := r.memory.Reserve(t.Context(), need+1) // there is room for none besides
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, _, err := r.ResolverFor(ModelOptions{Identity: media.ByPixels}).Resolve(ctx, shown(media.Video, data("image/gif", file)), builtin(t))
		done <- err
	}()
	for waits := 0; waits == 0; runtime.Gosched() {
		waits = r.memory.Waiting()
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	r.memory.Release(n)
	if r.memory.Used() != 0 || r.files.Used() != 0 {
		t.Errorf("%d and %d bytes are held", r.memory.Used(), r.files.Used())
	}
}

// TestSeen: it forgets what was used longest ago.
func TestSeen(t *testing.T) {
	s := newContentCache(2)
	key := func(s string) media.Key { return media.BytesKey([]byte(s)) }
	for _, name := range []string{"a", "b", "a", "c"} {
		s.addContent(key(name), media.Image, key(name+"!"), media.Size{Width: 1})
	}
	for name, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if k, _, ok := s.lookupContent(key(name), media.Image); ok != want || ok && k != key(name+"!") {
			t.Errorf("%s: %v", name, ok)
		}
	}
	if _, _, ok := s.lookupContent(key("a"), media.Video); ok {
		t.Error("a file that was seen as an image was seen as a video")
	}
}

// TestHeaders: what a probe cannot take is an error for the client.
func TestHeaders(t *testing.T) {
	_, err := fetcherSource{}.ReadHeader([]byte("x"))
	var bad *probe.Error
	if fault.CodeOf(err) != fault.Invalid {
		t.Errorf("%v", err)
	}
	if _, err = (fetcherSource{}).ReadHeader(bomb(1<<16, 1<<16)); fault.CodeOf(err) != fault.TooLarge || !errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
}

// TestPixelsOfFiles: the limit of pixels holds for files that are only counted here too.
func TestPixelsOfFiles(t *testing.T) {
	r, err := New(Config{Limits: pixel.Limits{Pixels: 56 * 84}}, &shelf{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for height, want := range map[int]bool{84: true, 85: false} {
		_, release, err := r.ResolverFor(ModelOptions{}).Resolve(t.Context(), shown(media.Image, data("image/png", encoded(t, "png", picture(56, height, red)))), builtin(t))
		if err == nil {
			release()
		}
		var u *prep.UnresolvedError
		if (err == nil) != want || errors.As(err, &u) || !want && !strings.Contains(err.Error(), "56 by 85 pixels") {
			t.Errorf("a picture of %d lines: %v", height, err)
		}
	}
}

// TestNoRoom: what would go right later is told as that, not as an error of the client's.
func TestNoRoom(t *testing.T) {
	r, err := New(Config{}, &shelf{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]fault.Code{"http://a/busy": fault.Overloaded, "http://a/missing": fault.Invalid} {
		var u *prep.UnresolvedError
		if _, _, err := r.ResolverFor(ModelOptions{}).Resolve(t.Context(), shown(media.Image, url), builtin(t)); !errors.As(err, &u) || u.Err.Code != want {
			t.Errorf("%s: %v, want the code %v", url, err, want)
		}
	}
}

func urlPeriod(url string, now time.Time, ttl time.Duration) uint64 {
	period, _ := media.URLPeriod(url, now.UnixNano(), ttl)
	return period
}

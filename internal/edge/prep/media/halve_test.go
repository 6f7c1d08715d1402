package media

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"penstock/core/encode"
	"penstock/core/media"
	"penstock/internal/edge/prep"
	"penstock/internal/media/pixel"
)

// TestHalved: a halved object is another one: it has a size, a key and a tensor of its own and no source, whatever
// identity and transfer the model has, and fewer tokens each time. One which cannot be made smaller is refused.
func TestHalved(t *testing.T) {
	file := encoded(t, "png", picture(224, 112, red))
	frame := base64.StdEncoding.EncodeToString(encoded(t, "jpeg", picture(56, 56, red)))
	src := &shelf{files: map[string][]byte{"http://a/1": file}}
	f := builtin(t)
	for _, way := range []ModelOptions{
		{Identity: media.ByURL}, {Identity: media.ByBytes}, {Identity: media.ByPixels}, {Identity: media.ByPixels, Transfer: TransferShared},
	} {
		lender := &desk{}
		r, err := New(Config{}, src, lender)
		if err != nil {
			t.Fatal(err)
		}
		for _, shows := range []struct {
			kind media.Kind
			url  string
		}{
			{media.Image, "http://a/1"},
			{media.Image, data("image/png", file)},
			{media.Video, "data:video/jpeg;base64," + strings.Repeat(frame+",", 7) + frame},
		} {
			keys := map[media.Key]bool{}
			tokens := 0
			for n := range 4 {
				chat := shown(shows.kind, shows.url)
				chat.Media[0].Halvings, chat.Media[0].Name = n, "mine"
				objects, release, err := r.ResolverFor(way).Resolve(t.Context(), chat, f)
				if n == 3 && err != nil { // small enough to have no fewer tokens
					var u *prep.UnresolvedError
					if !errors.As(err, &u) || u.Kind != encode.OutOfMemory || u.Err.Param != chat.Media[0].Part {
						t.Errorf("%v", err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%v halved %d times: %v", shows.kind, n, err)
				}
				o := &objects[0]
				layout, err := f.Layout(o.Kind, o.Size)
				if err != nil {
					t.Fatal(err)
				}
				if n > 0 && (layout.PadCount >= tokens || o.Identity != media.ByPixels || o.Source != "" || o.Name != "" ||
					o.Tensor.Data == nil || o.Key != pixel.ContentKey(o.Kind, &o.Tensor)) {
					t.Errorf("%v halved %d times has %d tokens after %d, and is %v of %q", shows.kind, n, layout.PadCount, tokens, o.Identity, o.Source)
				}
				if keys[o.Key] {
					t.Errorf("%v halved %d times has an earlier key", shows.kind, n)
				}
				keys[o.Key], tokens = true, layout.PadCount
				release()
			}
		}
		if src.mu.out != 0 || r.memory.Used() != 0 || r.files.Used() != 0 || len(lender.mu.lent) != 0 {
			t.Errorf("%d files and %d bytes are held, %d lent", src.mu.out, r.memory.Used(), len(lender.mu.lent))
		}
	}
}

// TestHalvedSounds: a sound is not halved, and a large object is lent or refused.
func TestHalvedSounds(t *testing.T) {
	r, err := New(Config{}, &shelf{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	chat := shown(media.Audio, data("audio/wav", wav(16_000)))
	chat.Media[0].Halvings = 1
	_, _, err = r.ResolverFor(ModelOptions{}).Resolve(t.Context(), chat, builtin(t))
	var u *prep.UnresolvedError
	if !errors.As(err, &u) || u.Kind != encode.OutOfMemory {
		t.Errorf("%v", err)
	}
	if r.memory.Used() != 0 || r.files.Used() != 0 {
		t.Error("memory is held")
	}
}

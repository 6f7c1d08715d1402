package media

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
)

// TestSaltedNames: names in a namespace belong to it alone, and routers read the same hash from them.
func TestSaltedNames(t *testing.T) {
	k, other := Key{Hash: 7, Digest: kv.Digest{1}}, Key{Hash: 7, Digest: kv.Digest{2}}
	if k.UUIDIn("") != k.UUID() {
		t.Errorf("%s without a namespace", k.UUIDIn(""))
	}
	names := map[string]bool{k.UUID(): true}
	for _, name := range []string{k.UUIDIn("a"), k.UUIDIn("b"), other.UUIDIn("a")} {
		if hash, ok := kv.MediaHash(name); !ok || hash != 7 || len(name) != 64 || names[name] {
			t.Errorf("%s has the hash %x", name, hash)
		}
		names[name] = true
	}
	if k.UUIDIn("a") != "0000000000000007e0d0979cb047aca5234b10c35680c22c0bdb9339684f1d0c" {
		t.Errorf("%s", k.UUIDIn("a"))
	}
}

// TestKeys compares keys with published vectors.
func TestKeys(t *testing.T) {
	for url, want := range map[string]string{
		"":                            "2d06800538d394c2",
		"a":                           "e6c632b61e964e1f",
		"abc":                         "78af5f94892f3950",
		"https://example.com/cat.jpg": "c705ea9eafcdcde9",
	} {
		if got := URLKey(url, 0).Hex(); got != want {
			t.Errorf("URLKey(%q) = %s, want %s", url, got, want)
		}
		if BytesKey([]byte(url)).Hex() != want || BytesKey([]byte(url)).Digest == URLKey(url, 0).Digest {
			t.Errorf("the bytes of %q have key %v", url, BytesKey([]byte(url)))
		}
	}
	pixels := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	for _, c := range []struct {
		shape []int
		want  string
	}{{[]int{2, 2, 3}, "3acc1f94a89006af"}, {[]int{1, 4, 3}, "26ea9da8350b5ae3"}} {
		if got := PixelsKey(c.shape, 0, pixels).Hex(); got != c.want {
			t.Errorf("PixelsKey(%v) = %s, want %s", c.shape, got, c.want)
		}
	}
	if URLKey("a", 1).Hash == URLKey("a", 2).Hash || NameKey("x", "yz") == NameKey("xy", "z") {
		t.Error("keys that must differ are equal")
	}
	k := URLKey("https://example.com/cat.jpg", 0)
	if h, ok := kv.MediaHash(k.UUID()); !ok || h != k.Hash || len(k.UUID()) != 64 {
		t.Errorf("%s reads back as %x", k.UUID(), h)
	}
}

// TestURLPeriod: a period lasts for the ttl, the next one begins when it ends, and URLs differ in when.
func TestURLPeriod(t *testing.T) {
	const ttl = time.Hour
	ends := map[int64]bool{}
	for _, url := range []string{"", "a", "https://example.com/cat.jpg"} {
		now := int64(1_800_000_000_123_456_789)
		period, end := URLPeriod(url, now, ttl)
		if end <= now || end > now+int64(ttl) {
			t.Errorf("%q: the period of %d ends at %d", url, now, end)
		}
		if last, _ := URLPeriod(url, end-1, ttl); last != period {
			t.Errorf("%q: %d and %d in one period", url, period, last)
		}
		if next, after := URLPeriod(url, end, ttl); next != period+1 || after != end+int64(ttl) {
			t.Errorf("%q: %d, which ends at %d, follows %d, which ends at %d", url, next, after, period, end)
		}
		ends[end] = true
	}
	if period, end := URLPeriod("a", 5, 0); period != 0 || end != 0 {
		t.Errorf("without a ttl: %d until %d", period, end)
	}
	if len(ends) != 3 {
		t.Errorf("periods end together: %v", ends)
	}
}

func TestExpand(t *testing.T) {
	marks := []kv.Token{100, 200}
	image := PromptObject{Placeholder: 100, Key: Key{Hash: 7}, Layout: Layout{Runs: []TokenRun{{8, 1}, {9, 2}, {8, 1}}}}
	video := PromptObject{Placeholder: 200, Key: Key{Hash: 5}, Layout: Layout{Runs: []TokenRun{{200, 1}}}}
	tokens, places, err := ExpandPrompt([]kv.Token{0}, nil, []kv.Token{1, 100, 200, 3}, marks, []PromptObject{image, video}, 8)
	want := []kv.Media{{Hash: 7, Start: 1, End: 5}, {Hash: 5, Start: 5, End: 6}}
	if err != nil || !slices.Equal(tokens, []kv.Token{0, 1, 8, 9, 9, 8, 200, 3}) || !slices.Equal(places, want) {
		t.Errorf("%v %v %v", tokens, places, err)
	}
	var length *LengthError
	var mismatch *MismatchError
	huge := PromptObject{Placeholder: 100, Layout: Layout{Runs: []TokenRun{{9, math.MaxInt}}}}
	if _, _, err := ExpandPrompt(nil, nil, []kv.Token{100, 100}, marks, []PromptObject{huge, huge}, math.MaxInt); !errors.As(err, &length) || length.Limit != MaxExpanded {
		t.Errorf("%v", err)
	}
	for _, prompt := range [][]kv.Token{{100}, {100, 200, 100}, {200, 100}, {1}} {
		if _, _, err := ExpandPrompt(nil, nil, prompt, marks, []PromptObject{image, video}, 100); !errors.As(err, &mismatch) {
			t.Errorf("%v: %v", prompt, err)
		}
	}
}

// TestExpandJoins: adjacent line breaks become one token, which is in the ranges of both objects.
func TestExpandJoins(t *testing.T) {
	breaks := []kv.Token{1, 2, 3, 4} // one to four line breaks
	layout := Layout{Runs: []TokenRun{{2, 1}, {9, 2}, {2, 1}}, Breaks: breaks}
	image := func(hash uint64) PromptObject {
		return PromptObject{Placeholder: 100, Key: Key{Hash: hash}, Layout: layout}
	}
	for _, c := range []struct {
		prompt, want []kv.Token
		places       []kv.Media
	}{
		{[]kv.Token{7, 100, 8}, []kv.Token{7, 2, 9, 9, 2, 8}, []kv.Media{{Hash: 1, Start: 1, End: 5}}},
		{[]kv.Token{7, 1, 100, 1}, []kv.Token{7, 3, 9, 9, 3}, []kv.Media{{Hash: 1, Start: 1, End: 5}}},
		{[]kv.Token{100, 1, 1}, []kv.Token{2, 9, 9, 3, 1}, []kv.Media{{Hash: 1, Start: 0, End: 4}}},
		{[]kv.Token{3, 100, 100, 3}, []kv.Token{4, 1, 9, 9, 4, 9, 9, 4, 1}, []kv.Media{{Hash: 1, Start: 1, End: 5}, {Hash: 2, Start: 4, End: 8}}},
	} {
		objects := []PromptObject{image(1), image(2)}[:len(c.places)]
		got, places, err := ExpandPrompt([]kv.Token{1}, nil, c.prompt, []kv.Token{100}, objects, 100)
		if err != nil || !slices.Equal(got[1:], c.want) || !slices.Equal(places, c.places) {
			t.Errorf("%v: %v %v %v, want %v %v", c.prompt, got, places, err, c.want, c.places)
		}
	}
}

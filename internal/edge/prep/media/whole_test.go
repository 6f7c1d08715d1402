package media

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"penstock/core/media"
	"penstock/internal/edge/prep"
	"penstock/internal/media/fetch"
)

// TestWholeFile: a host that sends no parts of files is asked for all of one where nothing can be
// done without its size, and nowhere else.
func TestWholeFile(t *testing.T) {
	var asked atomic.Int64
	file := encoded(t, "png", picture(56, 84, red))
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path != "/red" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(file) // whatever range was asked for
	}))
	defer host.Close()
	f, err := fetch.New(fetch.Config{AllowNets: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r, err := New(Config{}, NewFetcherSource(f, 1<<20), nil)
	if err != nil {
		t.Fatal(err)
	}
	resolve := func(way ModelOptions, path string) ([]media.Object, error) {
		t.Helper()
		objects, release, err := r.ResolverFor(way).Resolve(context.Background(), shown(media.Image, host.URL+path), builtin(t))
		if err == nil {
			release()
		}
		return objects, err
	}
	var u *prep.UnresolvedError
	if _, err := resolve(ModelOptions{}, "/red"); !errors.As(err, &u) || u.Reason != media.DimensionsUnknown || asked.Load() != 1 {
		t.Fatalf("%v after %d requests, want none but that for a part", err, asked.Load())
	}
	for range 2 { // the second time all of it is known
		objects, err := resolve(ModelOptions{FetchWhole: true}, "/red")
		if err != nil || objects[0].Size != (media.Size{Width: 56, Height: 84}) || objects[0].Identity != media.ByURL || asked.Load() != 2 {
			t.Fatalf("%+v, %v after %d requests", objects, err, asked.Load())
		}
	}
	if _, err := resolve(ModelOptions{FetchWhole: true}, "/none"); !errors.As(err, &u) || asked.Load() != 3 {
		t.Errorf("%v after %d requests, want that there is no such file after one", err, asked.Load())
	}
}

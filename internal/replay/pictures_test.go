package replay

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func shown(t *testing.T, spec string, seed uint64) (all [][]Media) {
	t.Helper()
	p, err := ParsePictures(spec, seed)
	if err != nil {
		t.Fatal(err)
	}
	w, err := ParseGenerator("random:requests=500", 1)
	if err != nil {
		t.Fatal(err)
	}
	source, err := p.AddPictures(w).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	var r Request
	for {
		if err := source.Next(&r); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, append([]Media(nil), r.Media...))
	}
}

func TestParsePictures(t *testing.T) {
	count := func(all [][]Media) int {
		ids := map[string]bool{}
		for _, media := range all {
			own := map[string]bool{}
			for _, m := range media {
				ids[m.ID], own[m.ID] = true, true
			}
			if len(own) != len(media) {
				t.Fatalf("a request shows a picture twice: %v", media)
			}
		}
		return len(ids)
	}
	if n := count(shown(t, "pool:size=100,each=2", 1)); n != 100 {
		t.Errorf("500 requests show %d pictures of a pool of 100", n)
	}
	if n := count(shown(t, "unique:each=3,width=10,height=20", 1)); n != 1500 {
		t.Errorf("500 requests show %d pictures of their own, not 1500", n)
	}
	if one := shown(t, "unique:width=10,height=20", 1)[0][0]; one.Width != 10 || one.Height != 20 || one.Kind != "image" {
		t.Errorf("%+v", one)
	}
	if shown(t, "pool", 1)[0][0].ID == shown(t, "pool", 2)[0][0].ID {
		t.Error("another seed shows the same pictures")
	}
	for spec, want := range map[string]string{
		"":                   "none of pool, unique, workload",
		"pool:size=0":        "from 1 to",
		"pool:size=2,each=3": "3 pictures of a pool of 2",
		"workload:size=1":    "has no parameters",
		"unique:zipf=1":      "no parameter zipf",
	} {
		if _, err := ParsePictures(spec, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", spec, err, want)
		}
	}
}

package sim

import (
	"slices"
	"strings"
	"testing"

	"penstock/core/encode"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
)

func TestParseMediaFaults(t *testing.T) {
	got, err := ParseMediaFaults("out_of_memory:256, corrupt")
	want := []MediaFault{{encode.OutOfMemory, 256}, {encode.Corrupt, 0}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseMediaFaults(" "); got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"broken", "unknown", "corrupt:", "corrupt:-1", "corrupt:1:2", "corrupt,,", strings.Repeat("corrupt,", MaxMediaFaults) + "corrupt"} {
		if _, err := ParseMediaFaults(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestMediaFaults: the objects of a request fail, each with the first fault which applies to it.
func TestMediaFaults(t *testing.T) {
	faults := []MediaFault{{encode.OutOfMemory, 9}, {encode.Corrupt, 5}}
	req := &engine.Request{Media: []kv.Media{{Start: 0, End: 4}, {Start: 4, End: 9}, {Start: 9, End: 29}}, Objects: make([]media.Object, 3)}
	all := engine.MediaFailures(failMedia(faults, req))
	if len(all) != 2 || all[0].Index != 1 || all[0].Kind != encode.Corrupt || all[1].Index != 2 || all[1].Kind != encode.OutOfMemory {
		t.Errorf("%+v", all)
	}
	req.Media, req.Objects = req.Media[:2], req.Objects[:2]
	if all := engine.MediaFailures(failMedia(faults, req)); len(all) != 1 {
		t.Errorf("%+v", all)
	}
	req.Media, req.Objects = req.Media[:1], req.Objects[:1]
	if err := failMedia(faults, req); err != nil {
		t.Error(err)
	}
}

package remote

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"penstock/core/engineevents"
	"penstock/internal/engine"
	"penstock/internal/media/probe"
)

// TestSampleParts checks that the sample parts have the content that they declare.
func TestSampleParts(t *testing.T) {
	for _, kind := range MediaKinds() {
		var part map[string]any
		if err := json.Unmarshal(SamplePart(kind), &part); err != nil {
			t.Fatal(err)
		}
		shown := part[part["type"].(string)].(map[string]any)
		text, _ := shown["data"].(string)
		if url, ok := shown["url"].(string); ok {
			_, text, _ = strings.Cut(url, ",")
		}
		for _, file := range strings.Split(text, ",") {
			data, err := base64.StdEncoding.DecodeString(file)
			if err != nil {
				t.Fatal(err)
			}
			info, err := probe.ReadHeader(data)
			if err != nil || info.Size.Width != 64 && info.Size.Samples != 1600 {
				t.Errorf("%s: %+v %v", kind, info, err)
			}
		}
	}
}

// TestSee checks that the settings take precedence over what was found.
func TestSee(t *testing.T) {
	for _, c := range []struct {
		o     OpenConfig
		found []string
		keys  string
		want  engine.Card
	}{
		{OpenConfig{}, []string{"video", "image"}, "uuid", engine.Card{Media: []string{"image", "video"}, MediaKeys: "uuid"}},
		{OpenConfig{Media: []string{"image"}}, nil, "", engine.Card{Media: []string{"image"}}},
		{OpenConfig{MediaKeys: "uuid"}, []string{"image"}, "", engine.Card{Media: []string{"image"}, MediaKeys: "uuid"}},
		{OpenConfig{MediaKeys: MediaKeysOff}, []string{"image"}, "uuid", engine.Card{Media: []string{"image"}}},
		{OpenConfig{Media: []string{}}, []string{"image"}, "uuid", engine.Card{}},
	} {
		var got engine.Card
		c.o.SetMediaFields(&got, c.found, c.keys)
		if !slices.Equal(got.Media, c.want.Media) || got.MediaKeys != c.want.MediaKeys {
			t.Errorf("%+v: %v %q", c.o, got.Media, got.MediaKeys)
		}
	}
}

// TestSight checks that a warning of unknown media stays while they occur.
func TestSight(t *testing.T) {
	var s unknownMedia
	if w := s.unknownMediaWarnings(engineevents.Stats{}); w != nil {
		t.Errorf("%v", w)
	}
	for i, of := range []engineevents.Stats{{Unresolved: 3}, {Unresolved: 3}, {Faceless: 4}} {
		w := s.unknownMediaWarnings(of)
		if len(w) != 1 || w[0].Code != engine.WarnMediaUnknown || len(w[0].Detail)+len(w[0].Remedy) > 400 || strings.Contains(w[0].Detail, "do not say") != (i == 2) {
			t.Errorf("%d: %v", i, w)
		}
	}
}

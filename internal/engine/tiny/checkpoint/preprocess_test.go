package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestColours: a directory has its processor's configuration in one of two files, or none.
func TestColours(t *testing.T) {
	clip := Colours{Mean: [3]float64{0.48145466, 0.4578275, 0.40821073}, Deviation: [3]float64{0.26862954, 0.26130258, 0.27577711}}
	half := Colours{Mean: [3]float64{0.5, 0.5, 0.5}, Deviation: [3]float64{0.5, 0.25, 0.5}}
	const halves = `"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.25,0.5],"rescale_factor":0.00392156862745098,"resample":3`
	for name, c := range map[string]struct {
		files map[string]string
		want  Colours
		err   string
	}{
		"none":             {nil, clip, ""},
		"says nothing":     {map[string]string{preprocessorFile: `{}`}, clip, ""},
		"one file":         {map[string]string{preprocessorFile: `{` + halves + `}`}, half, ""},
		"the other":        {map[string]string{processorFile: `{"image_processor":{` + halves + `}}`}, half, ""},
		"the other, empty": {map[string]string{processorFile: `{"video_processor":{}}`}, clip, ""},
		"both":             {map[string]string{preprocessorFile: `{` + halves + `}`, processorFile: `{"image_processor":{}}`}, half, ""},
		"bilinear":         {map[string]string{preprocessorFile: `{"resample":2}`}, clip, "resample 2"},
		"factor":           {map[string]string{preprocessorFile: `{"rescale_factor":0.5}`}, clip, "rescale_factor 0.5"},
		"not normalised":   {map[string]string{preprocessorFile: `{"do_normalize":false}`}, clip, "do_normalize"},
		"two means":        {map[string]string{preprocessorFile: `{"image_mean":[1,2]}`}, clip, "three numbers"},
		"no deviation":     {map[string]string{preprocessorFile: `{"image_std":[1,0,1]}`}, clip, "above 0"},
		"damaged":          {map[string]string{preprocessorFile: `{"image_std":`}, clip, "truncated"},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := ReadProcessors(dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Colours()
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want %q", name, err, c.err)
		case c.err == "" && (err != nil || got != c.want):
			t.Errorf("%s: %+v %v, want %+v", name, got, err, c.want)
		}
	}
}

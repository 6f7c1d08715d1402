package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
)

// The files which describe how media are prepared for an encoder.
const (
	preprocessorFile = "preprocessor_config.json"
	processorFile    = "processor_config.json"
	videoFile        = "video_preprocessor_config.json"
)

// Processors are the files which describe how a model's media are prepared, as JSON; nil for a file that the
// directory does not have. They are complete, for counting the tokens of media.
type Processors struct {
	Config            []byte // config.json
	Preprocessor      []byte // preprocessor_config.json
	Processor         []byte // processor_config.json
	VideoPreprocessor []byte // video_preprocessor_config.json
}

// ReadProcessors reads the files in dir.
func ReadProcessors(dir string) (p Processors, err error) {
	for _, f := range []struct {
		name string
		dst  *[]byte
	}{{configFile, &p.Config}, {preprocessorFile, &p.Preprocessor}, {processorFile, &p.Processor}, {videoFile, &p.VideoPreprocessor}} {
		if _, err := os.Stat(filepath.Join(dir, f.name)); os.IsNotExist(err) {
			continue
		}
		if *f.dst, err = readSmall(dir, f.name, maxConfig); err != nil {
			return Processors{}, err
		}
	}
	return p, nil
}

// Colours is how the colours of pictures are scaled: (c/255 - Mean) / Deviation, for red, green and blue.
type Colours struct{ Mean, Deviation [3]float64 }

// Colours returns the preprocessor's scaling; a file without one has the means and deviations of CLIP, like
// the processors that write such files. It refuses settings which would produce other pixels.
func (p *Processors) Colours() (Colours, error) {
	c := Colours{
		Mean:      [3]float64{0.48145466, 0.4578275, 0.40821073},
		Deviation: [3]float64{0.26862954, 0.26130258, 0.27577711},
	}
	obj, file, err := p.imageProcessor()
	if err != nil || obj == nil {
		return c, err
	}
	var mean, deviation []float64
	resample, factor := 3, 0.0
	resize, rescale, normalise := true, true, true
	err = obj.decodeFields(map[string]any{
		"image_mean": &mean, "image_std": &deviation, "resample": &resample, "rescale_factor": &factor,
		"do_resize": &resize, "do_rescale": &rescale, "do_normalize": &normalise,
	})
	switch {
	case err != nil:
	case mean != nil && len(mean) != 3 || deviation != nil && len(deviation) != 3:
		err = fmt.Errorf("image_mean and image_std need three numbers each")
	case resample != 3:
		err = fmt.Errorf("resample %d is not supported; supported is 3 (bicubic)", resample)
	case factor != 0 && (factor < 0.0039215 || factor > 0.0039216):
		err = fmt.Errorf("rescale_factor %v is not supported; supported is 1/255", factor)
	case !resize || !rescale || !normalise:
		err = fmt.Errorf("do_resize, do_rescale and do_normalize must be true")
	}
	if err != nil {
		return Colours{}, fmt.Errorf("checkpoint %s: %w", file, err)
	}
	copy(c.Mean[:], mean)
	copy(c.Deviation[:], deviation)
	for _, d := range c.Deviation {
		if !(d > 0) {
			return Colours{}, fmt.Errorf("checkpoint %s: image_std %v; every one must be above 0", file, deviation)
		}
	}
	return c, nil
}

// imageProcessor returns the configuration for pictures, nil if there is none, and the name of its file.
func (p *Processors) imageProcessor() (jsonObject, string, error) {
	file, data := preprocessorFile, p.Preprocessor
	if data == nil {
		file, data = processorFile, p.Processor
	}
	if data == nil {
		return nil, "", nil
	}
	obj, err := parseObject(data)
	const key = "image_processor"
	if err == nil && p.Preprocessor == nil {
		if !obj.has(key) {
			return nil, "", nil
		}
		obj, err = parseObject(obj[key])
	}
	if err != nil {
		return nil, "", fmt.Errorf("checkpoint %s: %w", file, err)
	}
	return obj, file, nil
}

package mimic

import (
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/core/media/probe"
)

// mediaLoader computes the tokens of media as the mocked engine's loader does.
type loading struct {
	features *Features
	family   *family.Family
	// direct counts a loader that passes on all frames, for features that are off.
	direct *family.Family
}

// familyServing returns what the mocked engine adds to the files of its model.
func (c *Config) serving() family.Serving {
	as := family.Serving{ProcessorArgs: c.ProcessorArgs}
	switch {
	case c.Dialect.vllm():
		as.Loader = family.VLLM
	case c.Dialect == SGLang:
		as.Loader = family.SGLang
	}
	return as
}

// newMediaLoader makes the pipeline of c count media as the mocked engine does.
func (c *Config) load() *loading {
	if c.Pipe == nil {
		return nil
	}
	as := c.serving()
	l := &loading{features: &c.Features, direct: c.Pipe.For(family.Serving{ProcessorArgs: as.ProcessorArgs}).Family}
	c.Pipe = c.Pipe.For(as)
	l.family = c.Pipe.Family
	return l
}

// layoutOf returns the layout of an object's tokens.
func (l *loading) layout(kind media.Kind, size media.Size) (media.Layout, error) {
	sampled := l.features.Sampling
	if size.Sequence {
		sampled = l.features.Sequences
	}
	if kind == media.Video && !sampled.on(true) {
		return l.direct.Layout(kind, size)
	}
	return l.family.Layout(kind, size)
}

// mediaSize returns an object's size from the header of its first file.
func (l *loading) sized(kind media.Kind, info *probe.Info, files int) media.Size {
	size := info.Size
	switch {
	case kind == media.Video:
		size.Frames, size.Sequence = max(size.Frames, files), info.Format == probe.JPEG
	case kind == media.Audio && !l.features.RoundUp.on(true) && info.Rate > 0:
		size.Samples = int(info.Frames * probe.ModelRate / int64(info.Rate))
	}
	return size
}

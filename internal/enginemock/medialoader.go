package enginemock

import (
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/media/probe"
)

// mediaLoader computes the tokens of media as the mocked engine's loader does.
type mediaLoader struct {
	features *Features
	family   *family.Family
	// direct counts a loader that passes on all frames, for features that are off.
	direct *family.Family
}

// newMediaLoader makes the pipeline of c count media as the mocked engine does.
func (c *Config) newMediaLoader(loader family.Loader) *mediaLoader {
	if c.Pipe == nil {
		return nil
	}
	l := &mediaLoader{features: &c.Features, direct: c.Pipe.ForServing(family.Serving{ProcessorArgs: c.ProcessorArgs}).Family}
	c.Pipe = c.Pipe.ForServing(family.Serving{ProcessorArgs: c.ProcessorArgs, Loader: loader})
	l.family = c.Pipe.Family
	return l
}

// layoutOf returns the layout of an object's tokens.
func (l *mediaLoader) layoutOf(kind media.Kind, size media.Size) (media.Layout, error) {
	sampled := l.features.Sampling
	if size.Sequence {
		sampled = l.features.Sequences
	}
	if kind == media.Video && !sampled.isOn(true) {
		return l.direct.Layout(kind, size)
	}
	return l.family.Layout(kind, size)
}

// mediaSize returns an object's size from the header of its first file.
func (l *mediaLoader) mediaSize(kind media.Kind, info *probe.Info, files int) media.Size {
	size := info.Size
	switch {
	case kind == media.Video:
		size.Frames, size.Sequence = max(size.Frames, files), info.Format == probe.JPEG
	case kind == media.Audio && !l.features.RoundUp.isOn(true) && info.Rate > 0:
		size.Samples = int(info.Frames * probe.ModelRate / int64(info.Rate))
	}
	return size
}

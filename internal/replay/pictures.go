package replay

import (
	"fmt"
	"slices"
	"strings"

	"penstock/core/splitmix"
)

// Pictures say which images a workload's requests show before their text.
type Pictures struct {
	kind                string
	size, width, height int
	perRequest          int
	zipf                float64
	seed                uint64
}

// The kinds of images.
const (
	ownPictures    = "workload" // the workload's own
	pooledPictures = "pool"
	uniquePictures = "unique"
)

// The largest image side, and the most images of a request.
const (
	maxSide     = 4096
	maxPictures = 64
)

// ParsePictures reads images from a flag: workload for the workload's own; pool:size=N for N images which
// repeat; unique for images which never repeat. Pools and unique images have width and height in pixels and
// each, the number in a request; a pool's popularity is 1/rank^zipf, by default equal. The draws are a
// function of the text and the seed.
func ParsePictures(s string, seed uint64) (*Pictures, error) {
	sp, err := parseFlagSpec(s)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	p := &Pictures{kind: sp.kind, size: 100, width: 224, height: 224, perRequest: 1, seed: seed}
	var knobs []parameter
	switch p.kind {
	case ownPictures:
	case pooledPictures:
		knobs = append(knobs, intParameter("size", &p.size, 1, maxPoolSize), floatParameter("zipf", &p.zipf, 0, 5))
		fallthrough
	case uniquePictures:
		knobs = append(knobs, intParameter("width", &p.width, 1, maxSide), intParameter("height", &p.height, 1, maxSide), intParameter("each", &p.perRequest, 1, maxPictures))
	default:
		return nil, fmt.Errorf("images: %q is none of %s", p.kind, strings.Join([]string{pooledPictures, uniquePictures, ownPictures}, ", "))
	}
	if err := sp.applyParameters(knobs); err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	if p.perRequest > p.size && p.kind == pooledPictures {
		return nil, fmt.Errorf("images: a request shows %d pictures of a pool of %d", p.perRequest, p.size)
	}
	return p, nil
}

// AddPictures returns the workload with its images.
func (p *Pictures) AddPictures(w Workload) Workload {
	if p.kind == ownPictures {
		return w
	}
	return &illustratedWorkload{w, p}
}

// illustratedWorkload is a workload whose requests show images.
type illustratedWorkload struct {
	Workload
	pictures *Pictures
}

// Open implements Workload.
func (w *illustratedWorkload) Open() (Source, error) {
	source, err := w.Workload.Open()
	if err != nil {
		return nil, err
	}
	s := &illustratedSource{Source: source, pictures: w.pictures, random: newRandomSource(w.pictures.seed, purposePictures)}
	if w.pictures.kind == pooledPictures {
		s.pool = newZipfSampler(w.pictures.size, w.pictures.zipf)
	}
	return s, nil
}

// illustratedSource is the source of an illustrated workload.
type illustratedSource struct {
	Source
	pictures *Pictures
	random   randomSource
	pool     zipfSampler
	count    int // unique images so far
	shown    []int
}

// Next implements Source.
func (s *illustratedSource) Next(r *Request) error {
	if err := s.Source.Next(r); err != nil {
		return err
	}
	r.Media, s.shown = r.Media[:0], s.shown[:0]
	for range s.pictures.perRequest {
		n := s.count
		if s.pictures.kind == pooledPictures {
			for n = s.pool.drawRank(&s.random); slices.Contains(s.shown, n); {
				n = (n + 1) % s.pictures.size
			}
		}
		s.count++
		s.shown = append(s.shown, n)
		id := splitmix.Mix(s.pictures.seed ^ splitmix.Mix(imageContent<<56|uint64(n)))
		r.Media = append(r.Media, Media{Kind: "image", ID: fmt.Sprintf("%016x", id), Width: s.pictures.width, Height: s.pictures.height})
	}
	return nil
}

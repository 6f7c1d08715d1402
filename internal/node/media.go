package node

import (
	"context"
	"errors"
	"time"

	"penstock/internal/node/engines"

	"penstock/core/media"
	"penstock/internal/config"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
	"penstock/internal/media/fetch"
	"penstock/internal/media/shm"
	"penstock/internal/obs"
)

// longestLease is the maximum lease of shared memory: leases end with their requests, and the limit covers
// lost ends.
const longestLease = time.Hour

// mediaResolver is what a frontend needs to resolve the media of requests.
type mediaResolver struct {
	lender   *shm.Lender // nil without shared memory
	resolver *resolve.Resolver
}

// newMediaResolver makes the media resolver of the settings.
func newMediaResolver(p *process) (s *mediaResolver, err error) {
	cfg, fetcher, log := p.cfg, p.fetcher, p.log
	s = &mediaResolver{}
	var lends resolve.Lender
	if s.lender, err = shm.NewLender(shm.Config{}); err == nil {
		lends = resolve.NewShmLender(s.lender, longestLease)
	} else {
		s.lender = nil
		obs.Component(log, "frontend").Debug("there is no shared memory for media: engines that would have them there fetch them", "error", err)
	}
	s.resolver, err = resolve.New(resolve.Config{
		Identity:   media.Identity(cfg.Media.Identity),
		URLTTL:     time.Duration(cfg.Media.URLTTL),
		MaxObjects: cfg.Media.MaxObjects,
		Timeout:    time.Duration(cfg.Media.Timeout),
		Limits:     engines.MediaLimits(cfg),
	}, mediaFiles(cfg, fetcher), lends)
	if err != nil {
		return nil, errors.Join(err, s.closeLender())
	}
	p.metrics.RegisterCollector(newMediaMetrics(fetcher, s.lender))
	return s, nil
}

// newFetcher makes the media fetcher of the settings.
func newFetcher(cfg *config.Loaded) (*fetch.Fetcher, error) {
	return fetch.New(fetch.Config{
		MinRate:      &cfg.Media.MinRate,
		AllowPrivate: cfg.Media.AllowPrivate, AllowHosts: cfg.Media.AllowHosts,
		MaxBytes: cfg.Media.MaxBytes, MaxPixels: cfg.Media.MaxPixels,
		Timeout: time.Duration(cfg.Media.Timeout), CacheBytes: cfg.Media.CacheBytes,
		// A size is trusted no longer than a URL's content; 0 is the default.
		DimensionsTTL: min(time.Duration(cfg.Media.URLTTL), 24*time.Hour),
	})
}

// mediaFiles is the source of media files.
func mediaFiles(cfg *config.Loaded, fetcher *fetch.Fetcher) resolve.Source {
	return resolve.NewFetcherSource(fetcher, cfg.Media.MaxBytes)
}

// run closes the resolver when ctx ends.
func (s *mediaResolver) run(ctx context.Context) error {
	<-ctx.Done()
	return s.closeLender()
}

func (s *mediaResolver) closeLender() error {
	if s.lender == nil {
		return nil
	}
	return s.lender.Close()
}

// mediaDecoder returns the card's description of the media decoder; nil if the engines decode.
func mediaDecoder(cfg *config.Loaded) *engine.MediaDecoder {
	if !cfg.Media.FrontendDecoding {
		return nil
	}
	if cfg.HasRemoteEngines() { // remote engines take files
		return &engine.MediaDecoder{Transfer: string(resolve.TransferOff)}
	}
	return &engine.MediaDecoder{Transfer: cfg.Media.Transfer}
}

// keepsFeatures reports whether the features which an engine's processor computes from media stay with the
// engine.
func keepsFeatures(cfg *config.Loaded) bool { return cfg.Media.Transfer == string(resolve.TransferOff) }

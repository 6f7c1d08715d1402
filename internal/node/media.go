package node

import (
	"net"
	"time"

	"penstock/internal/node/engines"

	"penstock/core/media"
	"penstock/internal/config"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
	"penstock/internal/media/fetch"
	"penstock/internal/obs"
	"penstock/internal/serve/bulk"
)

// mediaResolver is what a frontend needs to resolve the media of requests.
type mediaResolver struct {
	lender   *bulk.Lender
	resolver *resolve.Resolver
}

// newMediaResolver makes the media resolver of the settings.
func newMediaResolver(p *process) (s *mediaResolver, err error) {
	cfg, fetcher, log := p.cfg, p.fetcher, p.log
	s = &mediaResolver{lender: bulk.NewLender(p.planes.RPC, p.planes.Bulk, lenderAddr(p), obs.Component(log, "frontend"))}
	var lends resolve.Lender = s.lender
	if _, _, err := net.SplitHostPort(cfg.RPC.Advertise); err == nil && cfg.Command == config.Router {
		lends = nil // others reach only the router's own calls
	}
	s.resolver, err = resolve.New(resolve.Config{
		Identity:   media.Identity(cfg.Media.Identity),
		URLTTL:     time.Duration(cfg.Media.URLTTL),
		MaxObjects: cfg.Media.MaxObjects,
		Timeout:    time.Duration(cfg.Media.Timeout),
		Limits:     engines.MediaLimits(cfg),
	}, mediaFiles(cfg, fetcher), lends)
	if err != nil {
		return nil, err
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

// lenderAddr is the address at which a process lends media: a router's own is that of its calls.
func lenderAddr(p *process) string {
	host, port, err := net.SplitHostPort(p.planes.Addr)
	if err != nil || port == "0" || p.cfg.Command != config.Router {
		return p.planes.Addr
	}
	return net.JoinHostPort(host, "0")
}

// onlyOnHost reports whether engines take what frontends decoded in shared memory alone.
func onlyOnHost(cfg *config.Loaded) bool {
	return cfg.Media.Transfer == string(resolve.TransferShared) && !cfg.HasRemoteEngines() && cfg.Command != config.Up
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

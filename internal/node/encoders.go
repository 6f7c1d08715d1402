package node

import (
	"context"
	"time"

	"penstock/core/embcache"
	"penstock/internal/config"
	"penstock/internal/embregion"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/holders"
	"penstock/internal/node/engines"
	"penstock/internal/obs"
	"penstock/internal/serve/bulk"
	"penstock/internal/serve/encoder"
)

// openEncoders makes what workers need to encode media for others, to ask other workers for rows, and to read their memory.
// Encode workers ask none.
func (p *process) openEncoders() (err error) {
	if p.model == nil {
		return nil
	}
	if p.model.EmbeddingSource(0) != nil || len(p.model.Encoders) > 0 { // for workers which ask for rows
		p.lender = bulk.NewHandles(p.planes.Bulk)
	}
	card := p.model.Card()
	fetches := p.fetchesEmbeddings()
	if card.Encoder == "" || len(p.model.Engines) == 0 && !fetches {
		return nil
	}
	p.holders, err = holders.New(holders.Config{
		Namespace: p.cfg.Fleet.Namespace, Component: p.cfg.Fleet.Component, FollowReports: true,
	}, p.planes.Events, p.log)
	if err != nil {
		return err
	}
	if p.cfg.Command == config.Worker { // the metrics of up are its router's
		p.metrics.RegisterCollector(holders.NewCollector(p.holders))
	}
	services := encoder.Services{RPC: p.planes.RPC, Registry: p.planes.Registry, Fetch: p.borrower.FetchInto, Holders: p.holders}
	if fetches {
		p.regions = embregion.NewReaders(embregion.ReadersConfig{Log: p.log})
		services.Regions = p.regions
	}
	p.encoders = encoder.New(encoder.Config{
		Card: card, Namespace: p.cfg.Fleet.Namespace, Component: p.cfg.Fleet.Component, Log: obs.Component(p.log, "worker"),
		AskHolders: fetches,
	}, services)
	return nil
}

// fetchesEmbeddings reports whether the engines and encoders of this process use what workers hold which serve requests.
// The workers of up share a cache.
func (p *process) fetchesEmbeddings() bool {
	return p.cfg.Command == config.Worker && p.cfg.Media.EmbeddingFetch == config.On
}

// shareEmbeddings has the embedding caches of this process read by other workers of its host, and theirs by its engines
// and encoders.
func (p *process) shareEmbeddings(sources *engines.MediaSources) {
	if p.cfg.Command != config.Worker {
		return
	}
	if p.fetchesEmbeddings() {
		sources.Shared = remoteEncoders{p}
	}
	sources.Region = func() *embregion.Owner {
		o, err := embregion.NewOwner(embregion.OwnerConfig{Log: p.log})
		if err != nil { // of systems other than Linux
			p.log.Debug("the embedding cache cannot be read by other processes", "error", err)
			return nil
		}
		return o
	}
}

// ownRegion returns where others read the embedding cache of this process; nil if they cannot.
func (p *process) ownRegion() *embregion.Owner {
	if p.model == nil || p.cfg.Command != config.Worker {
		return nil
	}
	return p.model.Region(0)
}

// closeRegion gives the memory of the embedding cache back, after the engines.
func (p *process) closeRegion() error {
	if o := p.ownRegion(); o != nil {
		return o.Close()
	}
	return nil
}

// handoffLimit bounds the time for which an engine waits for others to encode an object: well below that after which an
// engine with a request and no sign of work counts as hanging (worker.Config.StallAfter).
const handoffLimit = 30 * time.Second

// useEncoders has an engine's media encoded by encode workers, if it takes what other engines encoded.
func (p *process) useEncoders(eng engine.Engine) {
	e, ok := eng.(interface {
		TakesEncodings() bool
		UseEncoders(remote.MediaEncoders)
	})
	if !ok || !e.TakesEncodings() {
		return
	}
	e.UseEncoders(encoder.New(encoder.Config{
		Card: eng.Card(), Namespace: p.cfg.Fleet.Namespace, Component: p.cfg.Fleet.Component, Limit: handoffLimit, Log: obs.Component(p.log, "worker"),
	}, encoder.Services{RPC: p.planes.RPC, Registry: p.planes.Registry}))
}

// remoteEncoders is the client of encode workers, which there is only after the engines were made.
type remoteEncoders struct{ of *process }

// HasEncoders implements tiny.RemoteEncoders.
func (r remoteEncoders) HasEncoders() bool {
	return r.of.encoders != nil && r.of.encoders.HasEncoders()
}

// HasHolder implements tiny.RemoteEncoders.
func (r remoteEncoders) HasHolder(key *embcache.RowKey) bool {
	return r.of.encoders != nil && r.of.encoders.HasHolder(key)
}

// ReadShared implements tiny.SharedRows.
func (r remoteEncoders) ReadShared(key *embcache.RowKey, rows, width int, into func(grid [3]int) []byte) (embregion.Found, bool) {
	if r.of.encoders == nil {
		return embregion.Found{}, false
	}
	return r.of.encoders.ReadShared(key, rows, width, into)
}

// EncodeObject implements tiny.RemoteEncoders.
func (r remoteEncoders) EncodeObject(ctx context.Context, job *engine.EncodeJob) (grid [3]int, err error) {
	return r.of.encoders.EncodeObject(ctx, job)
}

package router

import (
	"slices"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/holders"
)

// newEmbeddingIndex returns the index of the workers' embedding caches; nil if decisions do not depend on it.
func (r *Router) newEmbeddingIndex() (*holders.Directory, error) {
	if !r.usesEvents || r.cfg.Route.Affinity.Embedding == 0 {
		return nil, nil
	}
	return holders.New(holders.Config{Namespace: r.cfg.Namespace, Component: r.cfg.Component, Feed: r.cfg.Feed, Grace: r.cfg.Grace}, r.planes.Bus, r.log)
}

// setEmbeddingWorkers tells the index of embeddings which workers publish theirs.
func (r *Router) setEmbeddingWorkers(members []*member) {
	if r.embeddings == nil {
		return
	}
	var publish []holders.Worker
	for _, m := range members {
		if m.in.Card.EmbeddingEvents {
			publish = append(publish, holders.Worker{Worker: m.worker, Epoch: m.in.Epoch})
		}
	}
	r.embeddings.SetWorkers(publish)
}

// encodersOf returns the distinct fingerprints of encoders whose embeddings members tell of.
func encodersOf(members []*member) (encoders []string) {
	for _, m := range members {
		if m.in.Card.EmbeddingEvents && m.in.Card.Encoder != "" {
			encoders = append(encoders, m.in.Card.Encoder)
		}
	}
	slices.Sort(encoders)
	return slices.Compact(encoders)
}

// heldMedia is the memory of one look-up of a prompt's media.
type heldMedia struct {
	found   []route.HeldMedia
	holders []kv.Worker
}

// lookUpMedia finds which workers hold the embeddings of which media of a prompt of a cache namespace, made by one of
// the encoders. The result is memory of l.
func (r *Router) lookUpMedia(l *heldMedia, encoders []string, namespace string, media []kv.Media) []route.HeldMedia {
	l.found = l.found[:0]
	if r.embeddings == nil {
		return nil
	}
	for i := range media[:min(len(media), route.MaxHeldMedia)] {
		if media[i].Digest == (kv.Digest{}) {
			continue // 64 bits do not identify it
		}
		for _, encoder := range encoders {
			key := embcache.EventKey(encoder, namespace, media[i].Digest)
			l.holders = r.embeddings.AppendHolders(l.holders[:0], &key)
			for _, w := range l.holders {
				l.found = route.AddHolder(l.found, w, i)
			}
		}
	}
	return l.found
}

// embeddingRow is the JSON of the index of embeddings.
type embeddingRow struct {
	Workers  int `json:"workers"`  // which hold something
	Entries  int `json:"entries"`  // which a worker holds
	Holdings int `json:"holdings"` // pairs of the two
	// Displaced counts the holdings that were dropped because the index was full.
	Displaced uint64          `json:"displaced"`
	Feeds     []embeddingFeed `json:"feeds"`
}

// embeddingFeed is the JSON of the feed of one worker's embedding cache.
type embeddingFeed struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
	Held     int    `json:"held"`
	feedRow
}

// embeddingRow returns the row of the index of embeddings; nil if no worker has told of any.
func (r *Router) embeddingRow() *embeddingRow {
	if r.embeddings == nil {
		return nil
	}
	feeds, now := r.embeddings.Feeds()
	if len(feeds) == 0 {
		return nil
	}
	s := r.embeddings.Stats()
	row := &embeddingRow{Workers: s.Workers, Entries: s.Keys, Holdings: s.Holdings, Displaced: s.Displaced}
	for i := range feeds {
		f := &feeds[i]
		row.Feeds = append(row.Feeds, embeddingFeed{uint64(f.Worker.ID), f.Worker.Rank, f.Held, newFeedRow(now, workerCache{feed: f.Health})})
	}
	return row
}

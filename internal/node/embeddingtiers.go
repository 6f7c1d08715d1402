package node

import (
	"errors"
	"fmt"
	"io"

	"penstock/internal/config"
	"penstock/internal/embtier"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/natsd"
)

// embeddingTiers are the tiers of the embedding cache below memory, which there are only after the engines were made.
type embeddingTiers struct {
	*embtier.Tiers
	lock io.Closer // of the directory; nil if there is none
}

// openTiers opens the tiers which the settings name.
func (p *process) openTiers() (err error) {
	if p.tiers == nil {
		return nil
	}
	cfg := embtier.Config{Log: obs.Component(p.log, "engine")}
	if cfg.Dir = p.cfg.Media.EmbeddingDisk; cfg.Dir != "" {
		if p.tiers.lock, err = natsd.Lock(cfg.Dir); err != nil {
			return fmt.Errorf("embedding-cache-disk: %w", err)
		}
		cfg.DiskCapacity = gibibytes(p.cfg.Media.EmbeddingDiskGB)
	}
	if p.cfg.Media.EmbeddingObjects > 0 {
		cfg.ObjectCapacity = gibibytes(p.cfg.Media.EmbeddingObjects)
		if p.planes.Conn == nil {
			return config.AsSettingError(errors.New("embedding-cache-object-store-gb: the object store is in NATS: name the server with --nats"))
		}
		// Descriptions, and what several workers put at once, come on top.
		room := cfg.ObjectCapacity + cfg.ObjectCapacity/8 + 64<<20
		if cfg.Objects, err = bus.NewNATSObjects(p.planes.Conn, bus.ArchiveConfig{}, "embeddings", room); err != nil {
			return err
		}
	}
	p.tiers.Tiers, err = embtier.Open(cfg)
	return err
}

func gibibytes(n float64) int64 { return int64(n * (1 << 30)) }

// stats returns the figures of the tiers; nil without any.
func (t *embeddingTiers) stats() []embtier.Stats {
	if t == nil {
		return nil
	}
	return t.Tiers.Stats()
}

// close gives the directory free.
func (t *embeddingTiers) close() error {
	if t == nil || t.lock == nil {
		return nil
	}
	return t.lock.Close()
}

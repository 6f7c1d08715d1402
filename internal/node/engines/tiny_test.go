package engines

import (
	"testing"
	"time"

	"penstock/internal/config"
	"penstock/internal/enginemock/enginemocktest"
)

// TestEmbeddingSettings: the settings of the embedding cache reach the engines.
func TestEmbeddingSettings(t *testing.T) {
	cfg := tinyConfig(enginemocktest.LoadSettings(t, config.Up, "EMBEDDING_CACHE_CAPACITY_GB=0.5", "MEDIA_URL_TTL=2h"))
	if *cfg.EmbeddingCache != 1<<29 || cfg.URLTTL != 2*time.Hour {
		t.Errorf("%d bytes, %v", *cfg.EmbeddingCache, cfg.URLTTL)
	}
}

package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

// TestMediaDecoder: the card names the media decoder only for models with media.
func TestMediaDecoder(t *testing.T) {
	for _, sees := range [][]string{nil, {"image"}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{})
			r.cfg.MediaDecoder = &engine.MediaDecoder{Transfer: "shm"}
			card := servetest.ModelCard("m")
			card.Media = sees
			r.start(servetest.New(servetest.Config{Card: card, Step: time.Millisecond}))
			got, err := engine.DecodeCard(r.registry.Instances()[0].Meta)
			if err != nil || (got.MediaDecoder != nil) != (sees != nil) || sees != nil && got.MediaDecoder.Transfer != "shm" {
				t.Errorf("a model that sees %v: %+v %v", sees, got.MediaDecoder, err)
			}
			r.stop()
		})
	}
}

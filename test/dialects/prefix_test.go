package dialects

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"penstock/internal/enginemock"
)

// hasEvents reports whether a dialect says what is cached.
func hasEvents(d enginemock.Dialect) bool { return d != enginemock.LlamaCPP }

// TestPredictionsComeTrue: conversations grow turn by turn, side by side. Each goes on where its beginning is
// cached, and what the router predicts to be cached is what the engine reports, within one block.
func TestPredictionsComeTrue(t *testing.T) {
	for _, d := range enginemock.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			h := build(t, d, plan{})
			const conversations, turns = 4, 4
			at := make([]int, conversations)
			for turn := range turns {
				for c := range conversations {
					p := prompt(c+1, 100+70*turn)
					if !hasEvents(d) && turn > 0 {
						h.believes(p, 100+70*(turn-1))
					}
					a := h.ask(p, 8, turn%2 == 0, nil)
					what := fmt.Sprintf("conversation %d, turn %d", c, turn)
					if a.status != 200 || a.err != "" || a.finish != "length" {
						t.Fatalf("%s: %+v", what, a)
					}
					if off := a.cached - a.expected; off < -h.block || off > h.block {
						t.Errorf("%s: %d tokens were predicted, %d reported", what, a.expected, a.cached)
					}
					if turn == 0 {
						at[c] = a.worker
					} else if before := 100 + 70*(turn-1); a.worker != at[c] || a.cached < before-h.block {
						t.Errorf("%s: worker %d after %d, %d tokens cached of %d before", what, a.worker, at[c], a.cached, before)
					}
					if hasEvents(d) {
						h.settled()
					}
				}
			}
		})
	}
}

// believes waits until the router expects about so many tokens of a prompt to be cached somewhere.
func (h *house) believes(prompt []int, tokens int) {
	h.t.Helper()
	body, err := json.Marshal(map[string]any{"model": "m", "token_ids": prompt})
	if err != nil {
		h.t.Fatal(err)
	}
	h.eventually(func() error {
		res, err := h.client.Post(h.url+"/v1/router/best_worker", "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		var best struct {
			Overlap int `json:"overlap_blocks"`
		}
		if err := json.NewDecoder(res.Body).Decode(&best); err != nil {
			return err
		}
		if best.Overlap < tokens/h.block {
			return fmt.Errorf("%d blocks are expected of %d tokens", best.Overlap, tokens)
		}
		return nil
	})
}

// TestSmallCaches: caches that forget all the time are known to the last block.
func TestSmallCaches(t *testing.T) {
	for _, d := range enginemock.Dialects() {
		if !hasEvents(d) {
			continue
		}
		t.Run(string(d), func(t *testing.T) {
			h := build(t, d, plan{blocks: 48})
			for i := range 30 {
				p := append(prompt(i%4, 64), prompt(50+i, 80+i)...)
				if a := h.ask(p, 20, false, nil); a.status != 200 {
					t.Fatalf("%+v", a)
				}
			}
			h.settled()
		})
	}
}

// TestHabits: what engines of other versions and settings say comes to the same.
func TestHabits(t *testing.T) {
	for _, c := range []struct {
		name    string
		dialect enginemock.Dialect
		f       enginemock.Features
	}{
		{"binary", enginemock.VLLM, enginemock.Features{BinaryHashes: enginemock.On}},
		{"duplicates", enginemock.VLLM, enginemock.Features{Duplicates: enginemock.On}},
		{"hybrid", enginemock.VLLM, enginemock.Features{Hybrid: enginemock.On}},
		{"no token endpoints", enginemock.VLLM, enginemock.Features{Tokens: enginemock.Off}},
		{"arrays", enginemock.SGLang, enginemock.Features{MapEvents: enginemock.Off}},
		{"incremental", enginemock.SGLang, enginemock.Features{Cumulative: enginemock.Off}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := build(t, c.dialect, plan{blocks: 64, mimic: func(m *enginemock.Config) { m.Features = c.f }})
			for i := range 20 {
				p := append(prompt(i%4, 64), prompt(50+i, 80)...)
				if a := h.ask(p, 20, i%2 == 0, nil); a.status != 200 || a.err != "" || a.finish != "length" {
					t.Fatalf("%+v", a)
				}
			}
			h.settled()
		})
	}
}

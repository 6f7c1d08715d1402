package llamacpp

import (
	"encoding/json"
	"slices"
	"testing"

	"penstock/core/kv"
)

// FuzzDecode reads events made of numbers, which must come back, and any bytes, which must do no harm.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{1, 2, 250}, 3, 7, 2, true, []byte(`{"tokens":[4294967296],"stop":null}`))
	f.Add([]byte{}, 0, 0, 0, false, []byte(`{"error":{"code":400,"message":"the request exceeds the available context size","n_ctx":512}}`))
	f.Add([]byte{9}, 1, 1, 1, true, []byte(`{"tokens":[7],"timings":{"cache_n":-1},"prompt_progress":null,"completion_probabilities":[{"id":7}]`))
	f.Fuzz(func(t *testing.T, ids []byte, predicted, slot, cached int, eos bool, raw []byte) {
		_, _ = decodeEvent(raw, nil)
		tokens := []kv.Token{}
		for _, id := range ids {
			tokens = append(tokens, kv.Token(id)<<kv.Token(id%24))
		}
		predicted, slot, cached = predicted&0xffff, slot&0xff, cached&0xffff
		type object = map[string]any
		o := object{
			"unknown": string(raw), "tokens": tokens, "content": string(raw), "stop": true, "id_slot": slot, "tokens_predicted": predicted,
			"timings": object{"prompt_ms": 0.25, "cache_n": cached}, "generation_settings": object{"tokens": []int{1}, "stop": []string{"x"}},
		}
		if eos {
			o["stop_type"] = "eos"
		}
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		e, err := decodeEvent(data, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(e.tokens, tokens) || !e.stop || e.slot != slot || e.predicted != predicted || e.cached != cached || e.eos != eos || e.isError {
			t.Errorf("%+v of %s", e, data)
		}
	})
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	data := []byte(`{"index":0,"content":" a","tokens":[264],"stop":false,"id_slot":0,"tokens_predicted":1,"tokens_evaluated":4}`)
	var memory [4]kv.Token
	if n := testing.AllocsPerRun(100, func() {
		if _, err := decodeEvent(data, memory[:0]); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
}

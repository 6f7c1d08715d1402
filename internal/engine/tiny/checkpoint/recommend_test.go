package checkpoint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
	"penstock/internal/engine"
)

func TestSampling(t *testing.T) {
	yes, no, temperature, penalty, topK, off := true, false, 0.7, 1.1, 50, -1
	for name, c := range map[string]struct {
		in   Generation
		want engine.Sampling
	}{
		"silent":      {Generation{}, engine.Sampling{Temperature: 1}},
		"sampled":     {Generation{DoSample: &yes, Temperature: &temperature, TopK: &topK}, engine.Sampling{Temperature: 0.7, TopK: 50}},
		"greedy":      {Generation{DoSample: &no, Temperature: &temperature, RepetitionPenalty: &penalty}, engine.Sampling{RepetitionPenalty: 1.1}},
		"off":         {Generation{TopK: &off}, engine.Sampling{Temperature: 1}},
		"unspecified": {Generation{Temperature: &temperature}, engine.Sampling{Temperature: 0.7}},
	} {
		if diff := cmp.Diff(c.want, c.in.Sampling()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestEndOfSequence(t *testing.T) {
	facts := Facts{EOS: []kv.Token{1}}
	if got := EndOfSequence(&facts, &Generation{}, 10); !cmp.Equal(got, []kv.Token{1}) {
		t.Errorf("of config.json: %v", got)
	}
	if got := EndOfSequence(&facts, &Generation{EOS: []kv.Token{2, 10, 3}}, 10); !cmp.Equal(got, []kv.Token{2, 3}) {
		t.Errorf("of generation_config.json: %v", got)
	}
}

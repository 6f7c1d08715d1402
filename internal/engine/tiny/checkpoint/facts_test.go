package checkpoint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// TestReadFacts: the facts of a model that another program computes are read regardless of the other contents
// of its files, and values in an unknown form are skipped.
func TestReadFacts(t *testing.T) {
	all := Facts{VocabSize: 1000, MaxPositions: 4096, EOS: []kv.Token{1, 2}}
	for name, c := range map[string]struct {
		config string
		want   Facts
	}{
		"flat":                    {`{"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":[1,2]}`, all},
		"of no use to an engine":  {`{"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":[1,2],"intermediate_size":[8,9],"rope_parameters":{"full_attention":{}},"hidden_size":"x"}`, all},
		"an unknown rope":         {`{"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":[1,2],"rope_scaling":{"mrope_interleaved":true},"vision_config":{"patch_size":[14,14]}}`, all},
		"text_config":             {`{"eos_token_id":null,"text_config":{"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":[1,2]}}`, all},
		"llm_config":              {`{"llm_config":{"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":[1,2]}}`, all},
		"language_config":         {`{"language_config":{"vocab_size":1000,"n_positions":4096,"eos_token_id":[1,2]}}`, all},
		"thinker_config":          {`{"talker_config":{"vocab_size":7},"thinker_config":{"audio_config":{},"text_config":{"vocab_size":1000,"seq_length":4096,"eos_token_id":[1,2]}}}`, all},
		"ends outside first":      {`{"eos_token_id":[1,2],"text_config":{"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":7}}`, all},
		"sizes inside first":      {`{"vocab_size":9,"max_position_embeddings":9,"eos_token_id":[1,2],"text_config":{"vocab_size":1000,"max_position_embeddings":4096}}`, all},
		"a null inside":           {`{"vocab_size":1000,"text_config":{"vocab_size":null,"max_position_embeddings":4096,"eos_token_id":[1,2]}}`, all},
		"numbers of Python":       {`{"time_step_limit":[0.0,Infinity],"a":-Infinity,"b":NaN,"c":"\"NaN","vocab_size":1000.0,"max_position_embeddings":4096,"eos_token_id":[1,2]}`, all},
		"twice":                   {`{"vocab_size":1,"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":[1,2]}`, all},
		"ids that are none":       {`{"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":[1,-1,"x",null,2.5,2]}`, all},
		"sizes that are none":     {`{"vocab_size":"many","max_position_embeddings":-1,"eos_token_id":-1}`, Facts{}},
		"a part that is none":     {`{"vocab_size":1000,"max_position_embeddings":4096,"eos_token_id":[1,2],"text_config":"gemma"}`, all},
		"parts in parts, endless": {strings.Repeat(`{"text_config":`, 50) + `{"vocab_size":5}` + strings.Repeat(`}`, 50), Facts{}},
		"nothing":                 {`{}`, Facts{}},
		"no file":                 {``, Facts{}},
	} {
		dir := t.TempDir()
		if c.config != "" {
			write(t, dir, configFile, []byte(c.config))
		}
		got, _, err := ReadFacts(dir)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestReadFactsOfGeneration: a recommendation in an unknown form is skipped.
func TestReadFactsOfGeneration(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, generationFile, []byte(`{"temperature":"warm","top_p":[1],"top_k":50.0,"min_p":0.1,"do_sample":"yes","eos_token_id":[3,4]}`))
	_, got, err := ReadFacts(dir)
	want := Generation{EOS: []kv.Token{3, 4}, TopK: new(50), MinP: new(0.1)}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestReadFactsRefuses: a file that is not a configuration is named, with a remedy.
func TestReadFactsRefuses(t *testing.T) {
	for text, want := range map[string]string{`{"vocab_size":1`: "checkpoint config.json: ", `[]`: "fetch the file again", `null`: "want an object", `version https://git-lfs.github.com`: "fetch the file again"} {
		dir := t.TempDir()
		write(t, dir, configFile, []byte(text))
		if _, _, err := ReadFacts(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// FuzzReadFacts: the loose reader agrees with the strict reader on everything that the strict one accepts.
func FuzzReadFacts(f *testing.F) {
	f.Add([]byte(`{"eos_token_id":[1],"text_config":{"vocab_size":5,"max_position_embeddings":7},"a":NaN}`))
	f.Add([]byte(`{"vocab_size":3,"thinker_config":{"eos_token_id":1},"b":"\"-Infinity"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		obj, err := parseLoose(data)
		if err == nil {
			obj.readFacts()
			obj.readGeneration()
		}
		strict, refused := decodeConfig(data)
		if refused != nil {
			return
		}
		if err != nil {
			t.Fatalf("the strict reader takes it, and the loose one says %v", err)
		}
		loose, _ := obj.readFacts()
		if diff := cmp.Diff(strict.Facts, loose); diff != "" {
			t.Errorf("-strict +loose:\n%s", diff)
		}
	})
}

package vllm

import (
	"fmt"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"

	"github.com/google/go-cmp/cmp"
)

// twins answers a request with two events, once through the template if they match, and once without it: a
// space before the first event makes the two differ without a change of meaning.
func twins(t *testing.T, logprobs int, first, second string) {
	t.Helper()
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 2, Logprobs: logprobs, Prompt: []kv.Token{3}, Stop: engine.Stop{MaxTokens: 8}}
	for _, d := range []remote.Dialect{&completionsDialect{engine: tiny()}, &generateDialect{engine: tiny()}} {
		run := func(first string) (said string) {
			_, err := remote.RunDialect(testCard(), remote.SingleCall, d, req, [][]byte{[]byte(first), []byte(second), []byte(second), []byte(doneMarker)}, func(d *engine.Delta) error {
				for i, id := range d.Tokens { // in any division into deltas
					said += fmt.Sprintf("%d:%d=%d ", d.Choice, d.Pos+i, id)
				}
				if d.Finish != engine.NotFinished {
					said += fmt.Sprintf("%d ends %v with %d cached ", d.Choice, d.Finish, d.Cached)
				}
				return nil
			})
			return fmt.Sprintf("%s%v", said, err)
		}
		if diff := cmp.Diff(run(" "+first), run(first)); diff != "" {
			t.Errorf("%T: %s\nafter %s: %s", d, second, first, diff)
		}
	}
}

// alikes are consecutive events; some must not match.
var alikes = []string{
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a","finish_reason":null,"token_ids":[7]}],"usage":null}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a \"b\" ],[\\","finish_reason":null,"token_ids":[1, 2,3]}],"usage":null}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":"","finish_reason":null,"token_ids":[]}],"usage":null}`,
	`{"id":"c","model":"m","choices":[{"index":1,"text":" a","finish_reason":null,"token_ids":[7]}],"usage":null}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a","finish_reason":"stop","token_ids":[7]}],"usage":null}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a","finish_reason":null,"token_ids":[7]}],"usage":{"prompt_tokens_details":{"cached_tokens":1}}}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a","finish_reason":null,"token_ids":[7]}],"usage":null,"error":{"message":"x"}}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":null,"finish_reason":null,"token_ids":[7]}],"usage":null}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a","finish_reason":null,"token_ids":null}],"usage":null}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a","finish_reason":null,"token_ids":[7]`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a","finish_reason":null,"token_ids":[-7]}],"usage":null}`,
	`{"id":"c","model":"m","choices":[{"index":0,"text":" a","finish_reason":null,"token_ids":[7]}],"usage":null} x`,
	`{"id":"c","choices":[{"index":0,"token_ids":[7],"text":" a"}]}`,
	`{"id":"c","choices":[{"index":0,"token_ids":[8],"text":" b"}]}`,
	`{"id":"c","choices":[{"index":0,"text":" a","token_ids":[7],"token_ids":[8]}]}`,
	`{"id":"c","choices":[{"index":0,"text":" a","token_ids":[7]},{"index":1,"text":" a","token_ids":[7]}]}`,
	`{"id":"c","choices":[{"index":0,"token_ids":[7]}],"choices":[{"index":1,"token_ids":[7]}]}`,
	`{"id":"c","choices":[{"index":0,"logprobs":{"content":[{"token_id":7,"logprob":-1}]},"token_ids":[7]}]}`,
	`{"choices":[{"index":0,"token_ids":[7]}]}`,
	`{"choices":[{"index":0,"token_ids":[71,72]}]}`,
}

func TestAlike(t *testing.T) {
	for _, first := range alikes {
		for _, second := range alikes {
			for _, logprobs := range []int{-1, 0} {
				twins(t, logprobs, first, second)
			}
		}
	}
}

func FuzzAlike(f *testing.F) {
	for i := range alikes {
		f.Add(alikes[i], alikes[(i+1)%len(alikes)])
	}
	f.Fuzz(func(t *testing.T, first, second string) { twins(t, -1, first, second) })
}

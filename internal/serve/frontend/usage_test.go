package frontend

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
)

// TestContinuousUsage: stream_options.continuous_usage_stats gives each chunk the usage of its choice
// so far, if include_usage asks for usage at all. Load generators count tokens with it.
func TestContinuousUsage(t *testing.T) {
	const details = `,"completion_tokens_details":{"reasoning_tokens":0}}`
	usage := func(completion, all int) string {
		return fmt.Sprintf(`"usage":{"prompt_tokens":4,"completion_tokens":%d,"total_tokens":%d`, completion, all)
	}
	for _, tt := range []struct {
		path, body, options string
		want                []string
	}{
		{"/v1/completions", `"prompt":"0123"`, `{"include_usage":true,"continuous_usage_stats":true}`, []string{
			usage(1, 5) + details, usage(2, 6) + details, usage(3, 7) + details, // the end of the turn is a token
			usage(3, 7) + `,"prompt_tokens_details":{"cached_tokens":0}` + details,
		}},
		{"/v1/completions", `"prompt":"0123"`, `{"include_usage":true}`, []string{
			`"usage":null`, `"usage":null`, `"usage":null`, usage(3, 7) + `,"prompt_tokens_details":{"cached_tokens":0}` + details,
		}},
		{"/v1/completions", `"prompt":"0123"`, `{"continuous_usage_stats":true}`, nil},
	} {
		t.Run(tt.path+tt.options, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				w.worker(1, &script{say: func(int) string { return "hi" }})
				got := w.post(tt.path, fmt.Sprintf(`{"model":"bytes",%s,"stream":true,"stream_options":%s}`, tt.body, tt.options))
				if got.status != 200 {
					t.Fatal(got)
				}
				each := regexp.MustCompile(`"usage":(null|\{[^{}]*(\{[^{}]*\}[^{}]*)*\})`).FindAllString(got.body, -1)
				if !slices.Equal(each, tt.want) {
					t.Errorf("usage:\n%q\nwant\n%q", each, tt.want)
				}
			})
		})
	}
}

// TestContinuousUsageOfAChat: a choice begins with no token, and each is counted separately.
func TestContinuousUsageOfAChat(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, &script{say: func(int) string { return "hi" }})
		got := w.post("/v1/chat/completions", `{"model":"bytes","messages":[{"role":"user","content":"hello"}],"n":2,"stream":true,`+
			`"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
		if got.status != 200 {
			t.Fatal(got)
		}
		counts := map[string][]string{}
		for _, m := range regexp.MustCompile(`"choices":\[\{"index":(\d).*"completion_tokens":(\d)`).FindAllStringSubmatch(got.body, -1) {
			counts[m[1]] = append(counts[m[1]], m[2])
		}
		for _, choice := range []string{"0", "1"} {
			if want := []string{"0", "1", "2", "3"}; !slices.Equal(counts[choice], want) {
				t.Errorf("choice %s: %v, want %v in\n%s", choice, counts[choice], want, got.body)
			}
		}
		if !regexp.MustCompile(`"choices":\[\],"usage":\{"prompt_tokens":\d+,"completion_tokens":6,`).MatchString(got.body) {
			t.Errorf("no usage of the whole answer in\n%s", got.body)
		}
	})
}

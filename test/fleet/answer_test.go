package fleet

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	want := Answer{Choices: []Choice{{Text: "the water goes on", Finish: "length"}}, Prompt: 9, Output: 4}
	change := func(f func(*Answer)) *Answer {
		a := want
		a.Choices = append([]Choice(nil), want.Choices...)
		f(&a)
		return &a
	}
	for name, c := range map[string]struct {
		got  *Answer
		want AnswerFlaw
	}{
		"same":               {change(func(*Answer) {}), NoFlaw},
		"a token twice":      {change(func(a *Answer) { a.Choices[0].Text, a.Output = "the water water goes on", 5 }), Duplicated},
		"too much":           {change(func(a *Answer) { a.Choices[0].Text, a.Output = "the water goes on on", 5 }), Duplicated},
		"a token left out":   {change(func(a *Answer) { a.Choices[0].Text, a.Output = "the goes on", 3 }), Missing},
		"the end left out":   {change(func(a *Answer) { a.Choices[0].Text = "the water" }), Missing},
		"all left out":       {change(func(a *Answer) { a.Choices[0].Text = "" }), Missing},
		"another":            {change(func(a *Answer) { a.Choices[0].Text = "the sands goes on" }), Altered},
		"another finish":     {change(func(a *Answer) { a.Choices[0].Finish = "stop" }), Altered},
		"another usage":      {change(func(a *Answer) { a.Output = 5 }), Altered},
		"a choice too few":   {change(func(a *Answer) { a.Choices = nil }), Altered},
		"log-probabilities":  {change(func(a *Answer) { a.Choices[0].Logprobs = []string{`{"logprob":-1}`} }), Duplicated},
		"longer and another": {change(func(a *Answer) { a.Choices[0].Text = "a water goes onward" }), Altered},
	} {
		d := c.got.Diff(&want)
		if d.Flaw != c.want || (d.Flaw == NoFlaw) != (d.Tokens == 0) {
			t.Errorf("%s: %+v, want %q", name, d, c.want)
		}
	}
}

// TestCompareAgainstDefinition holds compare to what the flaws mean, on all short
// texts: an answer has something twice, or too much, if taking one piece out of it
// makes it right; something is missing if putting one piece in does.
func TestCompareAgainstDefinition(t *testing.T) {
	var texts []string
	for n, level := 0, []string{""}; n <= 5; n++ {
		texts = append(texts, level...)
		var next []string
		for _, s := range level {
			next = append(next, s+"a", s+"b")
		}
		level = next
	}
	without := func(long, short string) bool {
		for i := range len(short) + 1 {
			if cut := len(long) - len(short); long[:i]+long[i+cut:] == short {
				return true
			}
		}
		return false
	}
	for _, got := range texts {
		for _, want := range texts {
			flaw := Altered
			switch {
			case got == want:
				flaw = NoFlaw
			case len(got) > len(want) && without(got, want):
				flaw = Duplicated
			case len(got) < len(want) && without(want, got):
				flaw = Missing
			}
			if have := compareSlices([]byte(got), []byte(want)); have != flaw {
				t.Errorf("%q for %q is %q, want %q", got, want, have, flaw)
			}
		}
	}
}

const streamed = `: keep-alive

data: {"choices":[{"index":0,"delta":{"content":"the "},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"content":"water"},"logprobs":{"content":[{"logprob":-1}]},"finish_reason":"length"}]}

data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2},"nvext":{"workers":[{"worker_id":1},{"worker_id":2}]}}

data: [DONE]

`

func TestRead(t *testing.T) {
	var o Outcome
	if err := o.readStream(strings.NewReader(streamed), nil); err != nil {
		t.Fatal(err)
	}
	want := Answer{Choices: []Choice{{Text: "the water", Finish: "length", Logprobs: []string{`{"logprob":-1}`}}}, Prompt: 3, Output: 2}
	if d := o.Answer.Diff(&want); d.Flaw != NoFlaw || o.Texts != 2 || o.CountMoves() != 1 {
		t.Errorf("%+v, %+v", o, d)
	}
	for name, s := range map[string]string{
		"no end":           strings.Replace(streamed, "data: [DONE]\n", "", 1),
		"no finish":        strings.Replace(streamed, `"length"`, "null", 1),
		"nothing":          "",
		"an error":         "data: {\"error\":{\"message\":\"lost\"}}\n\n",
		"text after end":   strings.Replace(streamed, `"finish_reason":null`, `"finish_reason":"stop"`, 1),
		"events after end": streamed + streamed,
		"no JSON":          "data: {\n\n",
	} {
		if err := new(Outcome).readStream(strings.NewReader(s), nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestMix: requests differ, and each is one that JSON can carry.
func TestMix(t *testing.T) {
	seen := map[string]bool{}
	names := map[string]bool{}
	pictures, err := PictureRequests(4, 32)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append(RequestMix(3*requestKinds, 32), pictures...) {
		data, err := json.Marshal(r.Body)
		if err != nil || seen[string(data)] {
			t.Errorf("%s: %v", data, err)
		}
		seen[string(data)], names[r.Name] = true, true
	}
	if len(names) != requestKinds+1 { // and pictures
		t.Errorf("%d kinds, want %d", len(names), requestKinds+1)
	}
	r := RequestMix(1, 8)[0]
	if r.withField("seed", 3); r.Body["seed"] != nil {
		t.Error("with changed the request itself")
	}
}

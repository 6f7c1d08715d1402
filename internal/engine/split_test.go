package engine

import (
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
)

func fullSplit() disagg.SplitSettings {
	return disagg.SplitSettings{Policy: new(disagg.ByCost), MaxLocalPrefillLength: new(0), MaxPrefillQueueSize: new(disagg.MaxQueuedJobs)}
}

func fullSplitReport() *SplitReport {
	return &SplitReport{
		Policy: disagg.ByThreshold, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 2, Remote: true, Rule: "the prefill is long",
		Failure: "silent", Tokens: 2500, Cached: 16, PrefillWorkers: 3, QueuedJobs: 1, LocalMs: 250.5, RemoteMs: 0.25, By: kv.Worker{ID: kv.MaxWorkerID, Rank: 1},
	}
}

// splitMessages are a request with settings, and a delta with a report.
func splitMessages() map[string]message {
	request := &Request{ID: "r1", Attempt: 1, Model: "m", Prompt: []kv.Token{1, 2, 300}, Choices: 1, Stop: Stop{MaxTokens: 5}, Logprobs: -1, Split: fullSplit()}
	delta := &Delta{Attempt: 1, Tokens: []kv.Token{7}, Split: fullSplitReport()}
	return map[string]message{
		"request-split": {
			request, func(b []byte) (any, error) { got := new(Request); return got, DecodeRequest(b, got) },
			func() []byte { return AppendRequest(nil, request) },
		},
		"delta-split": {
			delta, func(b []byte) (any, error) { got := new(Delta); return got, DecodeDelta(b, got) },
			func() []byte { return AppendDelta(nil, delta) },
		},
	}
}

// TestSplitSettingsRoundTrip: each setting travels alone, also its zero, and nothing of an earlier request remains.
// What is unset costs no byte, and a policy of a later version reads as unset.
func TestSplitSettingsRoundTrip(t *testing.T) {
	bare := AppendRequest(nil, &Request{ID: "r"})
	for _, want := range []disagg.SplitSettings{
		{}, fullSplit(), {Policy: new(disagg.NeverRemote)}, {MaxLocalPrefillLength: new(disagg.MaxLocalTokens)}, {MaxPrefillQueueSize: new(0)},
	} {
		b := AppendRequest(nil, &Request{ID: "r", Split: want})
		got := Request{Split: fullSplit()}
		if err := DecodeRequest(b, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Split); diff != "" || (len(b) == len(bare)) != (want == disagg.SplitSettings{}) {
			t.Errorf("%d bytes: %s", len(b), diff)
		}
	}
	later := AppendRequest(nil, &Request{ID: "r", Split: disagg.SplitSettings{Policy: new(disagg.SplitPolicy(200)), MaxPrefillQueueSize: new(4)}})
	var got Request
	if err := DecodeRequest(later, &got); err != nil || got.Split.Policy != nil || got.Split.MaxPrefillQueueSize == nil {
		t.Errorf("a policy of a later version: %+v, %v", got.Split, err)
	}
}

// TestMalformedSplit: what is out of bounds is refused, since it would be shown, and could not be.
func TestMalformedSplit(t *testing.T) {
	for name, s := range map[string]disagg.SplitSettings{
		"many tokens": {MaxLocalPrefillLength: new(disagg.MaxLocalTokens + 1)},
		"many jobs":   {MaxPrefillQueueSize: new(disagg.MaxQueuedJobs + 1)},
	} {
		if err := DecodeRequest(AppendRequest(nil, &Request{Split: s}), new(Request)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*SplitReport){
		"no policy":       func(r *SplitReport) { r.Policy = math.MaxUint8 },
		"a long rule":     func(r *SplitReport) { r.Rule = strings.Repeat("x", maxSplitText+1) },
		"a long failure":  func(r *SplitReport) { r.Failure = strings.Repeat("x", maxSplitText+1) },
		"negative tokens": func(r *SplitReport) { r.Tokens = -1 },
		"negative queue":  func(r *SplitReport) { r.QueuedJobs = -1 },
		"no number":       func(r *SplitReport) { r.LocalMs = math.NaN() },
		"endless":         func(r *SplitReport) { r.RemoteMs = math.Inf(1) },
		"before now":      func(r *SplitReport) { r.RemoteMs = -1 },
		"no worker's id":  func(r *SplitReport) { r.By.ID = kv.MaxWorkerID + 1 },
	} {
		b := AppendDelta(nil, &Delta{Attempt: 1, Split: changed(fullSplitReport(), change)})
		if err := DecodeDelta(b, new(Delta)); err == nil || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused := AppendDelta(nil, refusedDelta())
	c := wireCodec{dst: refused}
	c.codeMessage(deltaSplit, fullSplitReport().codeFields)
	if err := DecodeDelta(c.dst, new(Delta)); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a report beside failures: %v", err)
	}
}

// TestSplitBytes pins the examples of docs/format/engine.md to the code.
func TestSplitBytes(t *testing.T) {
	all := documentedMessages(t)
	for name, b := range map[string][]byte{
		"settings": AppendRequest(nil, &Request{ID: "r1", Attempt: 1, Split: disagg.SplitSettings{Policy: new(disagg.ByThreshold), MaxLocalPrefillLength: new(0)}}),
		"a report": AppendDelta(nil, &Delta{Attempt: 1, Tokens: []kv.Token{7}, Split: &SplitReport{
			Policy: disagg.NeverRemote, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 2, Rule: "the policy is never", Tokens: 30, PrefillWorkers: 1, LocalMs: 0.5, RemoteMs: 2,
		}}),
	} {
		digits := hex.EncodeToString(b)
		var spaced []string
		for i := 0; i < len(digits); i += 2 {
			spaced = append(spaced, digits[i:i+2])
		}
		if code := strings.Join(spaced, " "); !all[code] {
			t.Errorf("docs/format/engine.md does not show %s: %s", name, code)
		}
	}
}

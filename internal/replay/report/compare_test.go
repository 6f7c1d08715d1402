package report

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"penstock/internal/replay"
)

// other is replayResult with another seed, another cost and another machine.
func other() *replay.Result {
	r := replayResult()
	r.Settings[6].Value = "2"
	r.Settings = append(r.Settings, replay.Setting{Name: "late-\x1b[1m", Value: "so"})
	r.Rows = r.Rows[1:]
	r.Rows[0].TTFT.Mean *= 1.5
	r.Rows[0].TTFT.P99 *= 1.001
	r.Rows[0].Late = true
	r.Rows[1].CachedShare /= 2
	r.Rows[2].Policy = "least-loaded, but slower"
	r.Rows[3].Errors, r.Rows[3].TTFT.Count = 400, 90
	r.Rows[4].Ideal = &replay.Ideal{Workers: 64}
	r.Rows[4].Goodput = &replay.Goodput{SLO: replay.SLO{TTFT: 500}, Share: 0.5}
	return r
}

func TestCompare(t *testing.T) {
	c := Compare(replayResult(), other())
	golden(t, "compare.table", c.WriteTable)

	same := Compare(replayResult(), replayResult())
	for _, p := range same.Pairs {
		for _, f := range p.Figures {
			if f.Difference != 0 || f.Ratio != nil && *f.Ratio != 1 || f.Verdict != "same" && f.Verdict != "" {
				t.Errorf("equal results differ: %s %+v", p.name, f)
			}
		}
		if len(p.Remarks) > 0 {
			t.Errorf("equal results have remarks: %v", p.Remarks)
		}
	}
	if len(same.Pairs) != 10 || len(same.Remarks) != 1 || same.OnlyA != nil || same.OnlyB != nil {
		t.Errorf("equal results: %+v", same)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b float64
		want string
	}{
		{"ttft_mean", 100, 101, "worse"},
		{"ttft_mean", 100, 99, "better"},
		{"ttft_mean", 100, 100.1, "same"}, // within what a histogram tells apart
		{"ttft_p99", 0, 0, "same"},
		{"cached_share", 0.4, 0.41, "better"},
		{"cached_share", 0.4, 0.39, "worse"},
		{"requests", 1, 2, ""},
		{"imbalance", 1.2, 1.1, "better"},
	} {
		if got := judgeChange(pickFigures(c.name)[0], c.a, c.b); got != c.want {
			t.Errorf("%s from %v to %v is %q, want %q", c.name, c.a, c.b, got, c.want)
		}
	}
}

// TestCompareMatches: equal rows are matched in their order, single rows whatever
// their names.
func TestCompareMatches(t *testing.T) {
	row := func(policy string, workers, requests int) replay.Row {
		return replay.Row{Policy: policy, Workers: workers, Requests: requests}
	}
	a := &replay.Result{Rows: []replay.Row{row("kv", 8, 1), row("kv", 8, 2), row("kv", 64, 3), row("random", 8, 4)}}
	b := &replay.Result{Rows: []replay.Row{row("kv", 64, 30), row("kv", 8, 10), row("kv", 8, 20), row("kv", 8, 40)}}
	c := Compare(a, b)
	var got []float64
	for _, p := range c.Pairs {
		got = append(got, p.Figures[0].B)
	}
	if !slices.Equal(got, []float64{10, 20, 30}) || len(c.OnlyA) != 1 || len(c.OnlyB) != 1 {
		t.Errorf("matched %v, only in A %v, only in B %v", got, c.OnlyA, c.OnlyB)
	}
	one := Compare(&replay.Result{Rows: []replay.Row{row("kv", 2, 1)}}, &replay.Result{Rows: []replay.Row{row("server", 0, 1)}})
	if len(one.Pairs) != 1 || one.Pairs[0].name != "kv, 2 workers (A) and server (B)" {
		t.Errorf("single rows: %+v", one)
	}
	sized := sizesResult()
	sized.Rows[0].Blocks /= 2
	sized.Rows[0], sized.Rows[2] = sized.Rows[2], sized.Rows[0]
	c = Compare(sizesResult(), sized)
	if len(c.Pairs) != 4 || !slices.Equal(c.Pairs[0].Remarks, []string{"Workers had 65,536 blocks in A, 32,768 blocks in B.", few}) || !slices.Equal(c.Pairs[2].Remarks, []string{few}) {
		t.Errorf("rows of several sizes: %+v", c)
	}
	none := Compare(a, &replay.Result{Rows: []replay.Row{row("new", 1, 1), row("newer", 1, 1)}})
	var out bytes.Buffer
	if err := none.WriteJSON(&out); err != nil || !strings.Contains(out.String(), `{"rows":[],`) || !strings.Contains(out.String(), "nothing to compare") {
		t.Errorf("nothing in common: %s, %v", out.String(), err)
	}
}

// few is the remark on 500 answers.
const few = "With 500 answers the p99 stands on the slowest 5: too few to compare it."

func TestCompareOnlyShows(t *testing.T) {
	for _, c := range []*Comparison{Compare(hostileResult(), replayResult()), Compare(replayResult(), hostileResult()), Compare(hostileResult(), hostileResult())} {
		var out bytes.Buffer
		if err := c.WriteTable(&out); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\x1b\x00\u2028\u202e\r\t") {
			t.Errorf("a terminal obeys %q", out.String())
		}
	}
}

func TestReadRefuses(t *testing.T) {
	var out bytes.Buffer
	if err := WriteJSON(&out, benchResult()); err != nil {
		t.Fatal(err)
	}
	good := out.String()
	change := func(old, to string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the result has no %s", old)
		}
		return strings.Replace(good, old, to, 1)
	}
	for text, want := range map[string]string{
		"":                             "empty",
		" \n":                          "empty",
		"{":                            "too early",
		good[:len(good)/2]:             "too early",
		"no":                           "no JSON",
		"\xff":                         "UTF-8",
		"[]":                           "the file must be an object, not a list",
		"3":                            "the file must be an object, not a number",
		"{}":                           "command is missing",
		`{"command":1}`:                "command must be a text, not a number",
		`{"a\u001bb":1}`:               `a\x1bb is unknown`,
		`{"rows":[{"policy":[]}]}`:     "rows[0].policy must be a text, not a list",
		good + good:                    "something follows",
		good + "x":                     "something follows",
		strings.Repeat(" ", maxSize+1): "larger than 16 MiB",
		strings.Repeat("[", 1<<20):     "must be an object",
		`{"notes":["` + strings.Repeat(`","`, maxEntries) + `"]}`:          "notes has more than 16384",
		change(`"command":"bench"`, `"command":"up"`):                      `command is "up"`,
		change(`"command":"bench"`, `"Command":"bench"`):                   "Command is unknown",
		change(`"command":"bench"`, `"command":"bench","command":"bench"`): "command is given twice",
		change(`"timeout":6`, `"timeout":6,"timeout":6`):                   "rows[0].error_kinds.timeout is given twice",
		change(`"timeout":6`, `"timeout":6.5`):                             "must be a whole number",
		change(`"requests":840`, `"requests":-840`):                        "rows[0].requests is -840",
		change(`"requests":840`, `"requests":7`):                           "more than the requests",
		change(`"requests":840`, `"requests":1e400`):                       "must be a whole number",
		change(`"cached_share":0`, `"cached_share":1`):                     "rows[0].cached_share is 1.",
		change(`"count":812`, `"count":null`):                              "rows[0].ttft_ms.count must be a number, not null",
		change(`"count":812,`, ``):                                         "rows[0].ttft_ms.count is missing",
		change(`"p50":`, `"p51":`):                                         "rows[0].ttft_ms.p51 is unknown",
		change(`"p50":`, `"p50":1e999,"x":`):                               "rows[0].ttft_ms.p50 is 1e999",
		change(`"late":true`, `"late":1`):                                  "rows[0].late must be true or false",
		change(`"rows":[{`, `"rows":[null,{`):                              "rows[0] must be an object, not null",
	} {
		_, err := Read(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
	if _, err := Read(strings.NewReader(`{"command":"replay","version":"","rows":[]}`)); err == nil || !strings.Contains(err.Error(), "nothing to compare") {
		t.Errorf("without rows: %v", err)
	}
}

// FuzzRead: what is read is what encoding/json reads, can be written and read again,
// and can be shown.
func FuzzRead(f *testing.F) {
	for _, r := range []*replay.Result{replayResult(), benchResult(), emptyResult(), hostileResult()} {
		r.Command, r.Version = "replay", "v0.3.0"
		var out bytes.Buffer
		if err := WriteJSON(&out, r); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Add([]byte(`{"command":"bench","version":"","rows":[],"ideal":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		if err := json.Unmarshal(data, new(replay.Result)); err != nil {
			t.Fatalf("encoding/json does not read it: %v", err)
		}
		var first, second bytes.Buffer
		if err := WriteJSON(&first, r); err != nil {
			t.Fatal(err)
		}
		again, err := Read(bytes.NewReader(first.Bytes()))
		if err != nil {
			t.Fatalf("not read again: %v", err)
		}
		if err := WriteJSON(&second, again); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("written twice: %s and %s (%v)", first.Bytes(), second.Bytes(), err)
		}
		for _, write := range []func(io.Writer) error{
			func(w io.Writer) error { return WriteTable(w, r) },
			func(w io.Writer) error { return WriteCSV(w, r) },
			Compare(r, again).WriteTable,
			Compare(r, again).WriteJSON,
		} {
			if err := write(io.Discard); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestSettings(t *testing.T) {
	result := func(command string, settings ...replay.Setting) *replay.Result {
		return &replay.Result{Command: command, Settings: settings}
	}
	seed := replay.Setting{Name: "seed", Value: "1"}
	words := replay.Setting{Name: "prompt-seed", Value: "7"}
	rate := replay.Setting{Name: "rate", Value: "3"}
	for _, c := range []struct {
		a, b *replay.Result
		want string
	}{
		{result("bench", seed), result("bench", seed, rate), "The setting rate differs: not given in A, 3 in B."},
		{result("replay", rate), result("bench", seed, words), ""}, // each has its own
		{result("replay", rate), result("bench", replay.Setting{Name: "rate", Value: "4"}), "The setting rate differs: 3 in A, 4 in B."},
		{result("bench", words), result("bench", replay.Setting{Name: "prompt-seed", Value: "8"}), ""},
		{result("bench", words), result("bench", words), "Both runs sent the same words: what the first one left in the caches was there for the second."},
	} {
		if got := strings.Join(compareSettings(c.a, c.b), " "); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

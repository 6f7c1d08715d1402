package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"penstock/internal/replay"
)

var pages = flag.String("pages", "", "write the pages of all made-up results into this directory, for a browser to check")

// bare is a result as it is read from JSON: without what figures are drawn from.
func bare() *replay.Result {
	r := replayResult()
	r.Plots = nil
	return r
}

func fixtures() map[string]*replay.Result {
	return map[string]*replay.Result{
		"replay": replayResult(), "bench": benchResult(), "empty": emptyResult(), "many": manyResult(), "hostile": hostileResult(),
		"none": {Command: "replay"}, "bare": bare(), "sizes": sizesResult(),
	}
}

// TestPages writes the pages, and what a browser should find in them.
func TestPages(t *testing.T) {
	for name, r := range fixtures() {
		var page, again bytes.Buffer
		if err := WriteHTML(&page, r); err != nil {
			t.Fatal(err)
		}
		if err := WriteHTML(&again, r); err != nil || !bytes.Equal(page.Bytes(), again.Bytes()) {
			t.Errorf("%s: the second page differs from the first (%v)", name, err)
		}
		if *pages == "" {
			continue
		}
		want, err := json.Marshal(map[string]any{"result": r, "plots": r.Plots})
		if err != nil {
			t.Fatal(err)
		}
		for suffix, data := range map[string][]byte{".html": page.Bytes(), ".json": want} {
			if err := os.WriteFile(filepath.Join(*pages, name+suffix), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPageIsAlone: nothing in a page names another file, the policy allows the one
// style and the one script that are there, and what a result says is text.
func TestPageIsAlone(t *testing.T) {
	for name, r := range fixtures() {
		var out bytes.Buffer
		if err := WriteHTML(&out, r); err != nil {
			t.Fatal(err)
		}
		page := out.String()
		policy := regexp.MustCompile(`Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(page)
		if policy == nil || !strings.HasPrefix(policy[1], "default-src 'none'; ") || strings.Contains(policy[1], "unsafe") {
			t.Fatalf("%s: policy %q", name, policy)
		}
		for tag, directive := range map[string]string{"style": "style-src", "script": "script-src"} {
			within := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(page, -1)
			if len(within) != 1 {
				t.Fatalf("%s: %d of %s", name, len(within), tag)
			}
			want := directive + " '" + cspDigest(within[0][1]) + "'"
			if !strings.Contains(strings.ReplaceAll(policy[1], "&#43;", "+"), want) {
				t.Errorf("%s: the policy %s does not have %s", name, policy[1], want)
			}
		}
		for _, bad := range []string{"<img", "<iframe", "@import", "url(", " src=", "href=\"http", "innerHTML", "eval("} {
			if name != "hostile" && strings.Contains(page, bad) {
				t.Errorf("%s: the page has %s", name, bad)
			}
		}
		if n := strings.Count(page, "<script"); n != 2 {
			t.Errorf("%s: %d scripts", name, n)
		}
		if strings.Contains(page, "<img") || strings.ContainsAny(page, "\x00\x1b\u2028\u202e") {
			t.Errorf("%s: the page has what should be text", name)
		}
		if strings.Contains(page, "ZgotmplZ") {
			t.Errorf("%s: the template refused a value", name)
		}
	}
}

// TestPageData: what figures are drawn from is what the result has.
func TestPageData(t *testing.T) {
	r := replayResult()
	r.Plots[0].PerWorker = make([]replay.WorkerShare, 3000)
	for i := range r.Plots[0].PerWorker {
		r.Plots[0].PerWorker[i] = replay.WorkerShare{Worker: 1<<63 + uint64(i), Computed: int64(i)}
	}
	r.Rows[1].InputTokens, r.Rows[1].Ideal = 0, nil
	r.Plots[1].TTFT = replay.Histogram{Upper: []float64{1, 2, 4, 8, 16}, Count: []int64{0, 0, 3, 1, 0}}
	data, err := newPageData(r).encodeJSON()
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Runs []struct {
			Cached, Same *float64
			TTFT         struct{ Upper, Count []float64 }
			Load         [][]any
			Left         int
			Mean         float64
		}
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	a, b := v.Runs[0], v.Runs[1]
	if len(a.Load) != maxBars || a.Left != 3000-maxBars || a.Mean != 1499.5 {
		t.Errorf("%d workers, %d left, mean %v", len(a.Load), a.Left, a.Mean)
	}
	if got := a.Load[len(a.Load)-1]; got[0] != "9223372036854778807" || got[2] != 2999. {
		t.Errorf("the busiest worker is %v", got)
	}
	if b.Cached != nil || b.Same != nil {
		t.Errorf("a share of nothing: %v, %v", b.Cached, b.Same)
	}
	if len(b.TTFT.Upper) != 3 || b.TTFT.Upper[0] != 2 || b.TTFT.Count[1] != 3 {
		t.Errorf("histogram %v", b.TTFT)
	}
}

func TestRepeat(t *testing.T) {
	r := &replay.Result{Command: "bench", Settings: []replay.Setting{{Name: "--url", Value: "http://h:1/?a=b&c"}, {Name: "note", Value: "it's $(reboot)"}, {Name: "json", Value: ""}}}
	want := "penstock bench \\\n  '--url=http://h:1/?a=b&c' \\\n  '--note=it'\\''s $(reboot)' \\\n  --json="
	if got := commandLine(r); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"penstock/internal/replay"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares what write writes with a file of testdata.
func golden(t *testing.T, name string, write func(io.Writer) error) {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != string(want) {
		t.Errorf("%s is not what is written (rewrite it with -rewrite and review the difference):\n%s", file, got)
	}
}

func TestTable(t *testing.T) {
	for name, r := range map[string]*replay.Result{
		"replay.table": replayResult(), "bench.table": benchResult(), "empty.table": emptyResult(), "hostile.table": hostileResult(),
		"sizes.table": sizesResult(),
		"none.table":  {Command: "replay"},
	} {
		golden(t, name, func(w io.Writer) error { return WriteTable(w, r) })
	}
}

// TestTableOnlyShows: whatever the texts are, a terminal gets lines of characters.
func TestTableOnlyShows(t *testing.T) {
	var out strings.Builder
	if err := WriteTable(&out, hostileResult()); err != nil {
		t.Fatal(err)
	}
	for _, c := range out.String() {
		if c != '\n' && !unicode.IsPrint(c) {
			t.Errorf("the table has %q", c)
		}
	}
}

// TestBest: a star is at the best figure among rows with the same number of
// workers, never at that of a late client, nor at one that all have; figures that
// look the same are the same.
func TestBest(t *testing.T) {
	row := func(workers int, mean float64, late bool) replay.Row {
		return replay.Row{Workers: workers, Requests: 1, Late: late, TTFT: replay.Distribution{Count: 1, Mean: mean}}
	}
	rows := []replay.Row{row(8, 20, false), row(8, 10, false), row(8, 5, true), row(8, 10.001, false), row(64, 3, false), row(2, 7, false), row(2, 7.001, false)}
	g := newFigureGrid(rows, pickFigures("ttft_mean"))
	for i, want := range []bool{false, true, false, true, false, false, false} {
		if got := g.Lines[i].Cells[0].Best; got != want {
			t.Errorf("row %d: marked %v, want %v", i, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{formatShort(0), "0"},
		{formatShort(0.0123), "0.012"},
		{formatShort(0.9994), "0.999"},
		{formatShort(0.9996), "1.00"},
		{formatShort(1.234), "1.23"},
		{formatShort(9.996), "10.0"},
		{formatShort(99.96), "100"},
		{formatShort(1234567.8), "1,234,568"},
		{formatShort(-1234.5), "-1,234"},
		{formatGrouped(-0.0001, 2), "0.00"},
		{formatInt(int64(999)), "999"},
		{formatInt(1000), "1,000"},
		{formatPercent(0.4567), "45.7 %"},
		{formatMilliseconds(999.4), "999 ms"},
		{formatMilliseconds(1500), "1.50 s"},
		{sanitizeText("a\x1b[1m\nb\u202e\xff", 20), `a\x1b[1m b\u202e\xff`},
		{sanitizeText("water", 3), "wat…"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// TestJSON: what is written is one line, exactly the fields of a result, and is read
// back as it was.
func TestJSON(t *testing.T) {
	for _, want := range []*replay.Result{replayResult(), benchResult(), emptyResult(), manyResult()} {
		var out bytes.Buffer
		if err := WriteJSON(&out, want); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(out.Bytes(), []byte("\n")); n != 1 {
			t.Errorf("%d lines", n)
		}
		plain, err := json.Marshal(want)
		if err != nil || string(plain)+"\n" != out.String() {
			t.Errorf("the fields are not the result's (%v)", err)
		}
		got, err := Read(&out)
		if err != nil {
			t.Fatal(err)
		}
		want.Plots = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("read back: %+v\nwas: %+v", got, want)
		}
	}
	var out bytes.Buffer
	if err := WriteJSON(&out, &replay.Result{Command: "replay"}); err != nil || !strings.Contains(out.String(), `"rows":[]`) {
		t.Errorf("without rows: %s, %v", out.String(), err)
	}
	bad := &replay.Result{Rows: []replay.Row{{CachedShare: math.NaN()}}}
	if err := WriteJSON(io.Discard, bad); err == nil {
		t.Error("NaN was written")
	}
}

func TestCSV(t *testing.T) {
	row := replay.Row{Policy: "kv", Workers: 2, Requests: 7, Errors: 3, ErrorKinds: map[string]int{"timeout": 1, "overloaded": 2}, CachedShare: 0.25}
	row.TTFT = replay.Distribution{Count: 4, Mean: 12.5, Min: 0.125, P50: 10, P90: 20, P95: 20, P99: 20, P999: 20, Max: 1e9}
	row.Goodput = &replay.Goodput{SLO: replay.SLO{TTFT: 100}, Share: 0.5, RequestsPerSecond: 1}
	golden(t, "rows.csv", func(w io.Writer) error {
		return WriteCSV(w, &replay.Result{Command: "replay", Version: "v0.3.0", Rows: []replay.Row{row, {Policy: "a, \"b\"", InputTokens: 1 << 53}}})
	})

	var out strings.Builder
	if err := WriteCSV(&out, hostileResult()); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\r\n") != 3 {
		t.Errorf("lines do not end with CRLF: %q", out.String())
	}
	records, err := csv.NewReader(strings.NewReader(out.String())).ReadAll()
	if err != nil || len(records) != 3 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	value := map[string]string{}
	for i, name := range records[0] {
		if _, twice := value[name]; twice {
			t.Errorf("two columns are called %s", name)
		}
		value[name] = records[2][i]
	}
	if got := value["policy"]; !strings.HasPrefix(got, "'=cmd|") {
		t.Errorf("a spreadsheet computes %s", got)
	}
	if value["ttft_ms_p50"] == "" || value["ideal_same_capacity_cached_share"] == "" || value["goodput_slo_ttft_ms"] != "" {
		t.Errorf("fields: %v", value)
	}
}

func TestHarmless(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "kv": "kv", "=1": "'=1", "+1": "'+1", "-1": "'-1", "@a": "'@a", "\t=1": "'\t=1", "\r=1": "'\r=1", "＝1": "'＝1",
	} {
		if got := escapeFormula(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

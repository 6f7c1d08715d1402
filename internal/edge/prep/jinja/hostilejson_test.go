package jinja

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestHostileJSON: what clients send as JSON is read or refused within a small
// multiple of its size. With -v it tells the time that each takes.
func TestHostileJSON(t *testing.T) {
	const n = 1 << 20
	for name, c := range map[string]struct {
		data string
		says string // of the error; "" if it is read
	}{
		"arrays":              {strings.Repeat("[", n), "nested more than"},
		"objects":             {strings.Repeat(`{"a":`, n/5), "nested more than"},
		"arrays that close":   {strings.Repeat("[", n/2) + strings.Repeat("]", n/2), "nested more than"},
		"keys that are equal": {"{" + strings.Repeat(`"a":1,`, n/6) + `"a":2}`, ""},
		"keys that differ":    {distinctKeys(n / 8), ""},
		"items":               {"[" + strings.Repeat("1,", n/2) + "1]", ""},
		"a long integer":      {strings.Repeat("9", n), "integer too large"},
		"a long fraction":     {"0." + strings.Repeat("9", n), ""},
		"a large exponent":    {"1e999999999", ""},
		"a small exponent":    {"1e-999999999", ""},
		"a longer exponent":   {"1e" + strings.Repeat("9", n), ""},
		"a long text":         {`"` + strings.Repeat("x", n) + `"`, ""},
		"escapes":             {`"` + strings.Repeat(`\u00e9`, n/6) + `"`, ""},
		"half pairs":          {`"` + strings.Repeat(`\ud800`, n/6) + `"`, ""},
		"broken text":         {`"` + strings.Repeat("\xff", n) + `"`, ""},
		"values":              {strings.Repeat("1 ", n/2), "more than one value"},
		"space":               {strings.Repeat(" ", n), "ends before"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := FromJSON([]byte(c.data))
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		made := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%6.1f ms %4d MiB  %s", float64(took.Microseconds())/1000, made, name)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if made > 128 {
			t.Errorf("%s: allocated %d MiB for %d bytes", name, made, len(c.data))
		}
	}
}

func distinctKeys(n int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		for k := i; ; k /= 26 {
			b.WriteByte(byte('a' + k%26))
			if k < 26 {
				break
			}
		}
		b.WriteString(`":1`)
	}
	b.WriteByte('}')
	return b.String()
}

// TestRepeatedKeys: the last value counts, at the first place.
func TestRepeatedKeys(t *testing.T) {
	v, err := FromJSON([]byte(`{"a":1,"b":2,"a":{"c":3,"c":4}}`))
	if err != nil {
		t.Fatal(err)
	}
	d := NewDict()
	d.Set("v", v)
	if got, err := render("{{ v | tojson }}", d); err != nil || got != `{"a": {"c": 4}, "b": 2}` {
		t.Errorf("%s, %v", got, err)
	}
}

package openai

import (
	"bytes"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/internal/edge/api"
)

// hostile returns chat bodies of about n bytes which are meant to be as expensive as possible, each with
// words of the expected error; "" if the body is valid.
func hostile(size int) map[string]struct {
	body  []byte
	words string
} {
	type one = struct {
		body  []byte
		words string
	}
	const call = `{"id":"a","type":"function","function":{"name":"f","arguments":""}}`
	fillAfter := func(head, open, piece, end string) []byte {
		n := max(0, (size-len(head)-len(open)-len(end)-1)/len(piece))
		var b bytes.Buffer
		b.Grow(size + len(piece))
		b.WriteString(head + open)
		for range n {
			b.WriteString(piece)
		}
		b.WriteString(end + `}`)
		return b.Bytes()
	}
	fill := func(open, piece, end string) []byte {
		return fillAfter(`{"model":"m","messages":[{"role":"user","content":"hi"}],`, open, piece, end)
	}
	talk := func(open, piece, end string) []byte {
		return fillAfter(`{"model":"m","messages":`, open, piece, end)
	}
	keys := func(n int, value string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(`"k` + strconv.FormatInt(int64(i), 36) + `":` + value + `,`)
		}
		return b.String()
	}
	deep := strings.Repeat("[", 60) + strings.Repeat("]", 60) + ","
	return map[string]one{
		// Refused at the position of the error, at the start of the body.
		"arrays too deep":     {fill(`"metadata":{"a":`, `[`, ``), "nested deeper"},
		"objects too deep":    {fill(`"chat_template_kwargs":`, `{"a":`, ``), "nested deeper"},
		"schema too deep":     {fill(`"tools":[{"type":"function","function":{"name":"f","parameters":`, `{"items":`, ``), "nested deeper"},
		"key twice":           {fill(`"model":"x","metadata":{"a":"`, `a`, `"}`), "given twice"},
		"key twice in a tool": {fill(`"tools":[{"type":"function","type":"`, `a`, `"}]`), "given twice"},
		"too many keys":       {fill(`"metadata":{`+keys(1<<14+1, "0")+`"z":"`, `a`, `"}`), "more than 16384 keys"},
		"too many tools":      {fill(`"tools":[`+functions(maxTools), `,{}`, `]`), "at most 1536"},
		"too many stops":      {fill(`"stop":["a"`, `,"a"`, `]`), "at most 32"},

		// Refused at the end of a scan, or after all of it.
		"digits":              {fill(`"seed":`, `9`, ``), "out of range"},
		"fraction":            {fill(`"temperature":0.`, `0`, `1`), "out of range"},
		"exponent":            {fill(`"top_p":1e`, `9`, ``), "out of range"},
		"digits in a tool":    {fill(`"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":`, `9`, `}}}]`), "out of range"},
		"digits in metadata":  {fill(`"metadata":{"a":-`, `9`, `}`), "out of range"},
		"key twice, late":     {fill(`"metadata":{"a":"`, `a`, `","\u0061":0}`), "given twice"},
		"kwarg twice, late":   {fill(`"chat_template_kwargs":{"a":[`, `0,`, `0],"a":0}`), "given twice"},
		"schema twice, late":  {fill(`"guided_json":{"enum":[`, `{"a":0},`, `0],"enum":0}`), "given twice"},
		"many keys, then one": {fill(`"metadata":{"a":[`, `{`+keys(16000, "0")+`"z":0},`, `{"z":0,"z":0}]}`), "given twice"},
		"text never ends":     {fill(`"user":"`, `\u00e9`, ``), "unexpected end"},
		"half a pair":         {fill(`"user":"`, `\ud83d\ude00`, `\ud83d"`), "invalid escape"},
		"unknown keys":        {fill(keys(16000, "0")+`"x":"`, `a`, `"`), "Unsupported parameter(s)"},
		"arrays, then trash":  {fill(`"metadata":{"a":[`, deep, `x]}`), "unexpected character"},

		// Valid.
		"text":          {fill(`"user":"`, `plain words `, `"`), ""},
		"escapes":       {fill(`"user":"`, `\u00e9`, `"`), ""},
		"empty arrays":  {fill(`"metadata":{"a":[`, `[],`, `0]}`), ""},
		"deep arrays":   {fill(`"metadata":{"a":[`, deep, `0]}`), ""},
		"small objects": {fill(`"chat_template_kwargs":{"a":[`, `{"a":0},`, `0]}`), ""},
		"large objects": {fill(`"guided_json":{"enum":[`, `{`+keys(16000, "0")+`"z":0},`, `0]}`), ""},
		"parts":         {talk(`[{"role":"user","content":[`, `{"type":"text","text":""},`, `{"type":"text","text":""}]}]`), ""},
		"tool calls":    {talk(`[{"role":"assistant","tool_calls":[`, call+`,`, call+`]}]`), ""},
		"tokens":        {fill(`"stop_token_ids":[`, `1,`, `1]`), ""},
		"tool schema":   {fill(`"tools":[{"type":"function","function":{"name":"f","parameters":{"enum":[`, `1e100,`, `0]}}}]`), ""},
	}
}

// TestHostile: every body gets a clear error of bounded length, and allocates less than six times its size,
// and little if the error is at its start.
func TestHostile(t *testing.T) {
	const size = 512 << 10
	bodies := hostile(size)
	for name, tt := range bodies {
		var err error
		got := allocated(func() { _, err = Decode(api.Chat, tt.body) })
		switch {
		case (err == nil) != (tt.words == ""):
			t.Errorf("%s: %v, want %q", name, err, tt.words)
		case err == nil:
		case fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), tt.words) || len(err.Error()) > 4096:
			t.Errorf("%s: %.200v, want %q", name, err, tt.words)
		}
		limit := uint64(6*size + 1<<20) // the rest is for the keys of one object
		if got > limit {
			t.Errorf("%s: %d bytes of memory for a body of %d", name, got, len(tt.body))
		}
	}
	for _, name := range []string{"arrays too deep", "objects too deep", "schema too deep", "key twice", "key twice in a tool", "digits", "exponent", "digits in a tool", "half a pair"} {
		body := bodies[name].body
		if got := allocated(func() { _, _ = Decode(api.Chat, body) }); got > 64<<10 {
			t.Errorf("%s: %d bytes of memory", name, got)
		}
	}
}

// TestWorkIsLinear: allocations grow no faster than the body.
func TestWorkIsLinear(t *testing.T) {
	small, large := hostile(256<<10), hostile(1<<20)
	for name := range small {
		count := func(body []byte) float64 {
			return testing.AllocsPerRun(1, func() { _, _ = Decode(api.Chat, body) })
		}
		if a, b := count(small[name].body), count(large[name].body); b > 4.5*a+100 {
			t.Errorf("%s: %v allocations, and %v for four times the size", name, a, b)
		}
	}
}

// TestManyMessages: a message takes more memory than its text, so their number is limited, and with it their
// memory: 136 bytes each, and as much again while the list grows.
func TestManyMessages(t *testing.T) {
	body := []byte(`{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":""},`, maxMessages) + `0]}`)
	var err error
	got := allocated(func() { _, err = Decode(api.Chat, body) })
	if err == nil || api.AsFault(err).Param != "messages" || !strings.Contains(err.Error(), "at most 65536") {
		t.Error(err)
	}
	if got > maxMessages*360 {
		t.Errorf("%d bytes of memory", got)
	}
}

// allocated returns the bytes allocated during f, including those of other goroutines.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func BenchmarkHostile(b *testing.B) {
	for name, tt := range hostile(32 << 20) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(tt.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decode(api.Chat, tt.body); (err == nil) != (tt.words == "") {
					b.Fatal(err)
				}
			}
		})
	}
}

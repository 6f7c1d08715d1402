package remote

import (
	"strings"
	"testing"
)

// BenchmarkEdit measures writing a key into a body with a picture of a mebibyte.
func BenchmarkEdit(b *testing.B) {
	body := []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 1<<20) + `"}}]}],"model":"m"}`)
	dst := make([]byte, 0, len(body)+1024)
	w := &editOptions{model: "m", names: []string{"k"}}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := editRequestBody(dst, body, w); err != nil {
			b.Fatal(err)
		}
	}
}

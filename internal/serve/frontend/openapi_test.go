package frontend

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestOpenAPIIsTrue: the description has exactly the existing paths, methods, media types and fields.
func TestOpenAPIIsTrue(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(7, constant("hi"))
		var doc struct {
			OpenAPI string                          `json:"openapi"`
			Paths   map[string]map[string]operation `json:"paths"`
		}
		a := w.get("/openapi.json")
		if err := json.Unmarshal([]byte(a.body), &doc); err != nil || doc.OpenAPI != "3.1.0" {
			t.Fatalf("%v: %s", err, a.body)
		}
		table := w.f.endpointTable()
		if len(doc.Paths) != len(table) || len(table) < 10 {
			t.Errorf("%d paths are described, %d are served", len(doc.Paths), len(table))
		}
		for _, e := range table {
			properties := doc.Paths[e.Path][e.Method].RequestBody.Content["application/json"].Schema.Properties
			for _, field := range e.Fields {
				if properties[field.Name] == nil {
					t.Errorf("%s: the field %s is not described", e.Path, field.Name)
				}
			}
			if len(properties) != len(e.Fields) {
				t.Errorf("%s: %d fields are described, the table has %d", e.Path, len(properties), len(e.Fields))
			}
		}
		for path, ops := range doc.Paths {
			url := strings.Replace(path, "{id}", "bytes", 1)
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
				op, described := ops[strings.ToLower(method)]
				body := ""
				if described && method == http.MethodPost {
					body = "{}"
				}
				got := read(w.send(t.Context(), method, url, strings.NewReader(body)))
				if got.status == http.StatusNotFound || (got.status == http.StatusMethodNotAllowed) == described {
					t.Errorf("%s %s is described: %v, and answers %d", method, path, described, got.status)
				}
				if described {
					op.check(t, w, method, path, got)
				}
			}
		}
	})
}

// operation is the part of a described operation that the test reads.
type operation struct {
	RequestBody struct {
		Content map[string]struct {
			Schema struct {
				Required   []string                   `json:"required"`
				Properties map[string]json.RawMessage `json:"properties"`
			} `json:"schema"`
		} `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Content map[string]json.RawMessage `json:"content"`
	} `json:"responses"`
}

func (op operation) check(t *testing.T, w *world, method, path string, got answerOf) {
	t.Helper()
	if method == http.MethodGet {
		media, _, _ := strings.Cut(got.header.Get("Content-Type"), ";")
		if _, ok := op.Responses["200"].Content[media]; !ok || got.status != http.StatusOK {
			t.Errorf("GET %s answers %d with %s", path, got.status, media)
		}
		return
	}
	body := op.RequestBody.Content["application/json"].Schema
	if len(body.Properties) < 2 || !slices.Contains(body.Required, "model") {
		t.Errorf("%s takes %d fields, and needs %v", path, len(body.Properties), body.Required)
	}
	unknown := func(field, value string) bool {
		return strings.Contains(w.post(path, `{"`+field+`":`+value+`}`).body, "Unsupported parameter(s)")
	}
	if !unknown("frobnicate", "1") {
		t.Errorf("%s takes any field", path)
	}
	for field := range body.Properties {
		if unknown(field, "{}") {
			t.Errorf("%s does not know the field %s", path, field)
		}
	}
}

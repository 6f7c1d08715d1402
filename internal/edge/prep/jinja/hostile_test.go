package jinja

import (
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
)

// hostileTemplates try to run forever, to fill memory or the stack, or to get
// out.
func hostileTemplates() map[string]string {
	return map[string]string{
		"nested loops":     "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
		"filtered loops":   "{% for a in range(99999) if (range(99999) | sum) < 0 %}{% endfor %}",
		"output":           "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
		"repetition":       "{{ 'x' * 10 ** 12 }}",
		"list repetition":  "{{ [1] * 10 ** 12 }}",
		"doubling":         "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
		"doubling a list":  "{% set n = namespace(s=[1]) %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
		"nesting a list":   "{% set n = namespace(s=[]) %}{% for a in range(9999) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
		"nested json":      "{% set n = namespace(s=[1]) %}{% for a in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
		"comparison":       "{% set n = namespace(s=[1], t=[1]) %}{% for a in range(40) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
		"macro recursion":  "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"loop recursion":   "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"replace":          "{{ ('x' * 100000) | replace('', 'y' * 100000) }}",
		"center":           "{{ 'x'.center(10 ** 15) }}",
		"format width":     "{{ '%999999999d' | format(1) }}",
		"format precision": "{{ '{:.999999999f}'.format(1.0) }}",
		"indent":           "{{ [[[]]] | tojson(indent=10 ** 9) }}",
		"power":            "{{ 9 ** (9 ** 9) }}",
		"batch":            "{{ [1] | batch(10 ** 12, 0) | list }}",
		"slices":           "{{ [1] | slice(10 ** 12) | list }}",
		"tuples as keys":   "{% set n = namespace(s=()) %}{% for a in range(40) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ {n.s: 1} }}",
		"strip":            "{{ ('x' * 1000000).strip('y' * 1000000 ~ 'x') }}",
		"join":             "{{ range(99999) | join('x' * 100000) }}",
		"deep parentheses": "{{ " + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000) + " }}",
		"deep unary":       "{{ " + strings.Repeat("-", 100000) + "1 }}",
		"deep not":         "{{ " + strings.Repeat("not ", 100000) + "1 }}",
		"deep blocks":      strings.Repeat("{% if 1 %}", 10000) + strings.Repeat("{% endif %}", 10000),
		"deep filters":     "{{ 1" + strings.Repeat("|abs", 100000) + " }}",
		"deep sums":        "{{ 1" + strings.Repeat("+1", 100000) + " }}",
		"deep conditions":  "{{ 1" + strings.Repeat(" if 1", 100000) + " }}",
		"deep targets":     "{% for " + strings.Repeat("(", 100000) + "a in b %}{% endfor %}",
		"comments":         strings.Repeat("{#", 100000),
		"raw":              "{% raw %}" + strings.Repeat("{% ", 100000),
		"own escape":       "{{ ''.__class__.__mro__[1].__subclasses__() }}",
		"own mutation":     "{{ [].append(1) }}",
	}
}

// TestHostile: each of them ends with an error that a client may see.
func TestHostile(t *testing.T) {
	for name, source := range hostileTemplates() {
		got, err := render(source, NewDict())
		if c := fault.Of(err); err == nil || c != fault.Invalid && c != fault.Unimplemented {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		} else if !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: %v names no line", name, err)
		}
	}
}

// TestErrorsNameTheLine: compiling and rendering say where it went wrong.
func TestErrorsNameTheLine(t *testing.T) {
	for source, says := range map[string]string{
		"a\n{% if %}":                   "line 2",
		"a\n\n{{ x.y }}":                "line 3: 'x' is undefined",
		"{% for i in [1] %}\n{{ 1/0 }}": "line 2",
		"\n{% include 'x' %}":           "line 2: no loader",
		"\n{% autoescape true %}":       "line 2: autoescape is not supported",
		"\n{{ 1 / 0 }}":                 "line 2: division by zero",
	} {
		if _, err := render(source, NewDict()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", source, err, says)
		}
	}
}

// TestConcurrentRenders: one template serves many at once.
func TestConcurrentRenders(t *testing.T) {
	tmpl, err := Compile("{% macro f(a) %}{{ a }}{{ loop }}{% endmacro %}{% for i in l %}{{ f(i) }}{{ loop.index }}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 8 {
		wg.Go(func() {
			vars := NewDict()
			vars.Set("l", List("a", "b"))
			for range 100 {
				if got, err := tmpl.Render(vars, now); err != nil || got != "a1b2" {
					t.Errorf("%q, %v", got, err)
					return
				}
			}
		})
	}
}

// FuzzTemplate: any source and any variables end, in text or in an error with a
// code.
func FuzzTemplate(f *testing.F) {
	for _, source := range hostileTemplates() {
		if len(source) < 1000 {
			f.Add(source, `{"messages":[{"role":"user","content":"x"}]}`)
		}
	}
	f.Add("{% for m in messages %}{{ m.role | upper ~ m['content'][1:] }}{% endfor %}{{ messages | tojson(indent=2) }}", `{"messages":[{"role":"u","content":"é"}]}`)
	f.Fuzz(func(t *testing.T, source, variables string) {
		v, err := FromJSON([]byte(variables))
		vars, ok := v.(*Dict)
		if err != nil || !ok {
			vars = NewDict()
		}
		if _, err := render(source, vars); err != nil && fault.Of(err) == fault.Internal {
			t.Fatalf("%v has no code", err)
		}
	})
}

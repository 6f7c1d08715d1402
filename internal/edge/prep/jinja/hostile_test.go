package jinja

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
)

// hostileTemplates try to run forever, to fill memory or the stack, or to get
// out.
func hostileTemplates() map[string]string {
	return map[string]string{
		"nested loops":      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
		"filtered loops":    "{% for a in range(99999) if (range(99999) | sum) < 0 %}{% endfor %}",
		"output":            "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
		"repetition":        "{{ 'x' * 10 ** 12 }}",
		"list repetition":   "{{ [1] * 10 ** 12 }}",
		"doubling":          "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
		"doubling a list":   "{% set n = namespace(s=[1]) %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
		"nesting a list":    "{% set n = namespace(s=[]) %}{% for a in range(9999) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
		"nested json":       "{% set n = namespace(s=[1]) %}{% for a in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
		"comparison":        "{% set n = namespace(s=[1], t=[1]) %}{% for a in range(40) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
		"macro recursion":   "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"loop recursion":    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"replace":           "{{ ('x' * 30000) | replace('', 'y' * 30000) }}",
		"center":            "{{ 'x'.center(10 ** 15) }}",
		"format width":      "{{ '%999999999d' | format(1) }}",
		"format precision":  "{{ '{:.999999999f}'.format(1.0) }}",
		"indent":            "{{ [[[]]] | tojson(indent=10 ** 9) }}",
		"power":             "{{ 9 ** (9 ** 9) }}",
		"batch":             "{{ [1] | batch(10 ** 12, 0) | list }}",
		"slices":            "{{ [1] | slice(10 ** 12) | list }}",
		"tuples as keys":    "{% set n = namespace(s=()) %}{% for a in range(40) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ {n.s: 1} }}",
		"strip":             "{{ ('x' * 1000000).strip('y' * 1000000 ~ 'x') }}",
		"join":              "{{ range(99999) | join('x' * 30000) }}",
		"deep parentheses":  "{{ " + strings.Repeat("(", 30000) + "1" + strings.Repeat(")", 30000) + " }}",
		"deep unary":        "{{ " + strings.Repeat("-", 30000) + "1 }}",
		"deep not":          "{{ " + strings.Repeat("not ", 30000) + "1 }}",
		"deep blocks":       strings.Repeat("{% if 1 %}", 10000) + strings.Repeat("{% endif %}", 10000),
		"deep filters":      "{{ 1" + strings.Repeat("|abs", 30000) + " }}",
		"deep sums":         "{{ 1" + strings.Repeat("+1", 30000) + " }}",
		"deep conditions":   "{{ 1" + strings.Repeat(" if 1", 30000) + " }}",
		"deep targets":      "{% for " + strings.Repeat("(", 30000) + "a in b %}{% endfor %}",
		"comments":          strings.Repeat("{#", 30000),
		"raw":               "{% raw %}" + strings.Repeat("{% ", 30000),
		"ranges":            "{% for a in range(10 ** 9) %}{% endfor %}",
		"a string's loop":   "{% for a in 'x' * 10 ** 6 %}{% for b in 'x' * 10 ** 6 %}{% endfor %}{% endfor %}",
		"macros in loops":   "{% macro f(n) %}{% for a in range(n) %}{{ f(n) }}{% endfor %}{% endmacro %}{{ f(9) }}",
		"blocks in blocks":  "{% block a %}{{ self.a() ~ self.a() }}{% endblock %}",
		"callers":           "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{% call f() %}{% endcall %}",
		"gigabyte":          "{{ 'x' * 10 ** 9 }}",
		"gigabyte by lists": "{% for a in range(99999) %}{{ ['x' * 1000] * 1000 }}{% endfor %}",
		"ljust":             "{{ 'x'.ljust(10 ** 9) }}",
		"zfill":             "{{ 'x'.zfill(10 ** 9) }}",
		"expandtabs":        "{{ '\t'.expandtabs(10 ** 9) }}",
		"wide indent":       "{{ ('x\n' * 9999) | indent(10 ** 5) }}",
		"growing replace":   "{% set n = namespace(s='xx') %}{% for a in range(99) %}{% set n.s = n.s | replace('x', 'xx') %}{% endfor %}",
		"growing join":      "{% set n = namespace(s='xx') %}{% for a in range(99) %}{% set n.s = n.s.join(n.s) %}{% endfor %}",
		"growing dicts":     "{% set n = namespace(d={}) %}{% for a in range(99999) %}{% set n.d = dict(n.d, **{a ~ '': a}) %}{% endfor %}",
		"growing tuples":    "{% set n = namespace(s=(1,)) %}{% for a in range(99) %}{% set n.s = n.s * 9 %}{% endfor %}",
		"growing blocks":    "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set x %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = x %}{% endfor %}",
		"format in format":  "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = '{0}{0}{0}'.format(n.s) %}{% endfor %}",
		"percent":           "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = '%s%s%s' % (n.s, n.s, n.s) %}{% endfor %}",
		"star width":        "{{ '%*d' % (10 ** 9, 1) }}",
		"huge number":       "{{ 10 ** (10 ** 6) }}",
		"huge literal":      "{{ 1" + strings.Repeat("0", 30_000) + " }}",
		"huge text to int":  "{{ ('9' * 10 ** 6) | int }}{{ 1 // 0 }}",
		"growing number":    "{% set n = namespace(s=3) %}{% for a in range(99) %}{% set n.s = n.s * n.s %}{% endfor %}",
		"equal texts":       "{% set a = 'x' * 10 ** 6 %}{% set b = 'x' * 10 ** 6 %}{% for i in range(99999) %}{{ a == b }}{% endfor %}",
		"ordered texts":     "{% set a = 'x' * 10 ** 6 %}{% set b = 'x' * 10 ** 6 %}{% for i in range(99999) %}{{ a < b }}{% endfor %}",
		"long keys":         "{% set a = 'x' * 10 ** 6 %}{% set d = {a: 1} %}{% for i in range(99999) %}{{ d[a] }}{% endfor %}",
		"long names":        "{% set a = 'x' * 10 ** 6 %}{% for i in range(99999) %}{{ {} | attr(a) }}{% endfor %}",
		"searching":         "{% set a = 'x' * 10 ** 6 %}{% for i in range(99999) %}{{ a.find('y') }}{{ 'y' in a }}{% endfor %}",
		"counting":          "{% set a = 'x' * 10 ** 6 %}{% for i in range(99999) %}{{ a | wordcount }}{% endfor %}",
		"casting":           "{% set a = ' ' * 10 ** 6 %}{% for i in range(99999) %}{{ a | int }}{{ a | float }}{% endfor %}",
		"stripping tags":    "{% set a = '<' * 10 ** 6 %}{% for i in range(99999) %}{{ a | striptags }}{% endfor %}",
		"is upper":          "{% set a = '1' * 10 ** 6 %}{% for i in range(99999) %}{{ a is upper }}{% endfor %}",
		"splitting":         "{% for i in range(99999) %}{{ ('x ' * 10 ** 6).split() | length }}{% endfor %}",
		"negative indices":  "{% set a = 'é' * 10 ** 6 %}{% for i in range(99999) %}{{ a[-1] }}{% endfor %}",
		"sorting":           "{% set a = range(99999) | list %}{% for i in range(9999) %}{{ a | sort | length }}{% endfor %}",
		"sorting keys":      "{% set a = ['x' * 10 ** 5] * 100 %}{% for i in range(9999) %}{{ a | sort | length }}{% endfor %}",
		"grouping":          "{% for i in range(9999) %}{{ range(99999) | map('string') | groupby('x') | length }}{% endfor %}",
		"unique":            "{% for i in range(9999) %}{{ range(99999) | unique | list | length }}{% endfor %}",
		"membership":        "{% set a = range(99999) | list %}{% for i in a %}{{ -1 in a }}{% endfor %}",
		"generators":        "{% set n = namespace(s=range(9)) %}{% for a in range(9999) %}{% set n.s = n.s | map('string') %}{% endfor %}{{ n.s | list }}",
		"pprint":            "{% set n = namespace(s=['xx xx' * 30]) %}{% for a in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | pprint }}",
		"pprint one line":   "{{ ('x ' * 10 ** 6) | pprint | pprint | pprint }}{{ 1 // 0 }}",
		"wordwrap":          "{% for i in range(9999) %}{{ ('x-' * 10 ** 5) | wordwrap(1) | length }}{% endfor %}",
		"wordwrap hyphens":  "{{ ('-' * 10 ** 6) | wordwrap(10 ** 6 - 1) | length }}{{ ('a' ~ '-' * 10 ** 5 ~ ' ') * 2 | wordwrap(3) | length }}{{ 1 // 0 }}",
		"urlize":            "{% for i in range(9999) %}{{ ('www.a.bc/((((( ' * 10 ** 4) | urlize(rel='x' * 1000) | length }}{% endfor %}",
		"urlize brackets":   "{{ ('(' * 10 ** 5 ~ 'a' ~ ')' * 10 ** 5) | urlize | length }}{{ ('a(' * 10 ** 5 ~ ')' * 10 ** 5) | urlize | length }}{{ 1 // 0 }}",
		"xmlattr":           "{% for i in range(99999) %}{{ {'a': '&' * 10 ** 5} | xmlattr | length }}{% endfor %}",
		"urlencode":         "{% for i in range(99999) %}{{ ('&' * 10 ** 5) | urlencode | length }}{% endfor %}",
		"deep lists":        "{{ " + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + " }}",
		"deep dicts":        "{{ " + strings.Repeat("{1:", 30000) + "1" + strings.Repeat("}", 30000) + " }}",
		"deep calls":        "{{ f" + strings.Repeat("()", 30000) + " }}",
		"deep attributes":   "{{ f" + strings.Repeat(".a", 30000) + " }}",
		"deep items":        "{{ f" + strings.Repeat("[f", 30000) + strings.Repeat("]", 30000) + " }}",
		"deep powers":       "{{ 1" + strings.Repeat("**1", 30000) + " }}",
		"deep tests":        "{{ 1" + strings.Repeat(" is odd", 30000) + " }}",
		"deep loops":        strings.Repeat("{% for a in b %}", 5000) + strings.Repeat("{% endfor %}", 5000),
		"deep macros":       strings.Repeat("{% macro a() %}", 5000) + strings.Repeat("{% endmacro %}", 5000),
		"deep fields":       "{{ '" + strings.Repeat("{:", 30000) + strings.Repeat("}", 30000) + "'.format(1) }}",
		"many tags":         strings.Repeat("{{ a }}", maxSource/7-10) + "{{ 1 // 0 }}",
		"many texts":        "{{ " + strings.Repeat("'a'", 30_000) + " ** 2 }}",
		"own escape":        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
		"own mutation":      "{{ [].append(1) }}",
	}
}

// TestHostile: each of them ends with an error that a client may see, within its
// budget of steps and memory. With -v it tells the time that each takes.
func TestHostile(t *testing.T) {
	for name, source := range hostileTemplates() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		got, err := render(source, NewDict())
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		made := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%6.1f ms %4d MiB  %s", float64(took.Microseconds())/1000, made, name)
		if c := fault.CodeOf(err); err == nil || c != fault.Invalid && c != fault.Unimplemented {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		} else if !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: %v names no line", name, err)
		}
		if made > maxMade {
			t.Errorf("%s: allocated %d MiB, more than %d", name, made, maxMade)
		}
	}
}

// maxMade is how many MiB a rendering may allocate in all, which is more than it
// ever holds: the budget, what values need beside their contents, and the tree.
const maxMade = 96

// BenchmarkHostile tells the time and memory of each.
func BenchmarkHostile(b *testing.B) {
	for name, source := range hostileTemplates() {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := render(source, NewDict()); err == nil {
					b.Fatal("no error")
				}
			}
		})
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

// TestRaisedMessage: a template's own words are an error's, up to a length.
func TestRaisedMessage(t *testing.T) {
	if _, err := render("{{ raise_exception('no \n \"tools\"') }}", NewDict()); err == nil || err.Error() != "no \n \"tools\"" {
		t.Errorf("%v", err)
	}
	if _, err := render("{{ raise_exception('é' * 10 ** 6) }}", NewDict()); err == nil || len(err.Error()) > maxRaised+len("…") || !utf8.ValidString(err.Error()) {
		t.Errorf("%d bytes", len(err.Error()))
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
	fixturetest.AddCorpus(f)
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
		if _, err := render(source, vars); err != nil && fault.CodeOf(err) == fault.Internal {
			t.Fatalf("%v has no code", err)
		}
	})
}

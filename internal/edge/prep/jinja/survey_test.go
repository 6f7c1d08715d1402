package jinja

import "testing"

// TestLoopsOverContent has what package chat's fixture of real templates has not.
func TestLoopsOverContent(t *testing.T) {
	for source, want := range map[string]bool{
		"": false,
		"{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}":                                                                              true,
		"{% for m in messages %}{% for p in m['content'] | reverse %}{% endfor %}{% endfor %}":                                                                 true,
		"{% for m in messages %}{% for p in m.content[1:] %}{% endfor %}{% endfor %}":                                                                          true,
		"{% for m in messages %}{% for p in m.content[0] %}{% endfor %}{% endfor %}":                                                                           false,
		"{% for m in messages %}{% for p in m.contents %}{% endfor %}{% endfor %}":                                                                             false,
		"{% for m in messages if m.role == 'user' %}{% for p in m.content %}{% endfor %}{% endfor %}":                                                          true,
		"{% for m in messages %}{% endfor %}{% for p in x.content %}{% endfor %}":                                                                              false,
		"{% set ns = namespace(rest=messages) %}{% for m in ns.rest %}{% for p in m.content %}{% endfor %}{% endfor %}":                                        true,
		"{% set ns = namespace(rest=[]) %}{% set ns.rest = messages[1:] %}{% for m in ns.rest %}{% for p in m.content %}{% endfor %}{% endfor %}":              true,
		"{% set a = b %}{% set b = messages %}{% for m in a %}{% for p in m.content %}{% endfor %}{% endfor %}":                                                true,
		"{% for i, m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}":                                                                           false,
		"{% for m in messages %}{% for k, v in m.content %}{% endfor %}{% endfor %}":                                                                           false,
		"{% for p in content %}{% endfor %}":                                                                                                                   true,
		"{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}":                                                                               false,
		"{% macro f(x, y) %}{% for p in y %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(1, m.content) }}{% endfor %}":                                true,
		"{% macro f(x, y) %}{% for p in y %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content, 1) }}{% endfor %}":                                false,
		"{% macro f(x, y) %}{% for p in y %}{% endfor %}{% endmacro %}{% for m in messages %}{% call f(y=m.content) %}{% endcall %}{% endfor %}":               true,
		"{% macro g(y) %}{{ y }}{% endmacro %}{% macro f(y) %}{% for p in y %}{% endfor %}{% endmacro %}{% for m in messages %}{{ g(m.content) }}{% endfor %}": false,
	} {
		tmpl, err := Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := tmpl.LoopsOverContent(); got != want {
			t.Errorf("%s: %v", source, got)
		}
	}
}

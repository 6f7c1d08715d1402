package jinja

import (
	"slices"
	"strings"
)

// templateSurvey is what the parser records of a template in addition to its tree: whether it loops over the
// parts of a message's content, for which engines pass a list.
type templateSurvey struct {
	loops  []surveyedLoop
	sets   []*setStmt
	calls  []*callExpr
	macros []*macroDef // of the template, in order
	around []*macroDef // enclosing the current position, the innermost last
}

// surveyedLoop is a loop with its enclosing macros.
type surveyedLoop struct {
	target, iter expr
	within       []*macroDef
}

func (s *templateSurvey) addLoop(f *forStmt) {
	s.loops = append(s.loops, surveyedLoop{f.target, f.iter, slices.Clone(s.around)})
}

// parseWithin calls parse for the body of m.
func (s *templateSurvey) parseWithin(m *macroDef, parse func()) {
	s.macros = append(s.macros, m)
	s.around = append(s.around, m)
	parse()
	s.around = s.around[:len(s.around)-1]
}

// LoopsOver reports whether the template has a loop over an attribute of a variable, also through filters and
// slices: {% for part in message.content %}.
func (t *Template) LoopsOver(variable, attribute string) bool {
	return slices.ContainsFunc(t.survey.loops, func(l surveyedLoop) bool { return readsVariable(l.iter, variable, attribute) })
}

// LoopsOverContent reports whether the template has a loop over the content of a message, under any name of
// the message and through macros which get the content: the test by which vLLM decides whether a template
// gets a list of parts. Like vLLM it ignores scopes.
func (t *Template) LoopsOverContent() bool {
	s := &t.survey
	messages, ok := s.messageNames()
	if !ok {
		return false
	}
	content := func(e expr) bool {
		return slices.ContainsFunc(messages, func(name string) bool { return readsVariable(e, name, "content") })
	}
	for i := range s.loops {
		l := &s.loops[i]
		name, isName := l.iter.(*nameExpr)
		switch {
		case content(l.iter):
		case isName && s.isParameter(l, name.name, content):
		case isName && len(l.within) == 0 && name.name == "content":
		default:
			continue
		}
		_, one := l.target.(*nameExpr)
		return one
	}
	return false
}

// maxNames bounds the aliases of one thing: templates have a few.
const maxNames = 64

// messageNames returns the names which loops give to a message. ok is false if a loop unpacks messages, where
// vLLM gives up.
func (s *templateSurvey) messageNames() (names []string, ok bool) {
	lists := s.findAliases("messages")
	for i := range s.loops {
		l := &s.loops[i]
		if !slices.ContainsFunc(lists, func(list string) bool { return readsVariable(l.iter, list, "") }) {
			continue
		}
		target, one := l.target.(*nameExpr)
		if !one {
			return nil, false
		}
		if len(names) < maxNames && !slices.Contains(names, target.name) {
			names = append(names, target.name)
		}
	}
	return names, true
}

// findAliases returns a variable and the names which the template sets to it or to elements of it; attributes
// of namespaces have a dot.
func (s *templateSurvey) findAliases(variable string) []string {
	all := []string{variable}
	add := func(name string) {
		if len(all) < maxNames && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	for i := 0; i < len(all); i++ {
		for _, set := range s.sets {
			switch target := set.target.(type) {
			case *nsExpr:
				if readsVariable(set.value, all[i], "") {
					add(target.name + "." + target.attr)
				}
			case *nameExpr:
				if readsVariable(set.value, all[i], "") {
					add(target.name)
				}
				for _, attr := range namespaceAttrs(set.value, all[i]) {
					add(target.name + "." + attr)
				}
			}
		}
	}
	return all
}

// namespaceAttrs returns the attributes which a call of namespace sets to a variable or to elements of it.
func namespaceAttrs(e expr, variable string) (attrs []string) {
	call, ok := e.(*callExpr)
	if !ok {
		return nil
	}
	if name, ok := call.callee.(*nameExpr); !ok || name.name != "namespace" {
		return nil
	}
	for i, value := range call.args.named {
		if readsVariable(value, variable, "") {
			attrs = append(attrs, call.args.names[i])
		}
	}
	return attrs
}

// isParameter reports whether name is a parameter of a macro around l which gets the content in some call.
func (s *templateSurvey) isParameter(l *surveyedLoop, name string, content func(expr) bool) bool {
	for _, m := range l.within {
		at := slices.Index(m.params, name)
		if at < 0 {
			continue
		}
		for _, call := range s.calls {
			if callee, ok := call.callee.(*nameExpr); !ok || callee.name != m.name {
				continue
			}
			if at < len(call.args.items) && content(call.args.items[at]) {
				return true
			}
			if i := slices.Index(call.args.names, name); i >= 0 && content(call.args.named[i]) {
				return true
			}
		}
	}
	return false
}

// readsVariable reports whether e is a variable, or an attribute of it if one is named, through filters,
// tests and slices. A name with a dot is an attribute of a namespace.
func readsVariable(e expr, variable, attribute string) bool {
	switch e := e.(type) {
	case *filterExpr:
		return e.of != nil && readsVariable(e.of, variable, attribute)
	case *testExpr:
		return readsVariable(e.of, variable, attribute)
	case *itemExpr:
		if _, ok := e.key.(*sliceExpr); ok {
			return readsVariable(e.of, variable, attribute)
		}
		key, ok := e.key.(constExpr)
		return ok && attribute != "" && key.value == attribute && isVariable(e.of, variable)
	case *attrExpr:
		if attribute != "" {
			return e.name == attribute && isVariable(e.of, variable)
		}
	}
	return attribute == "" && isVariable(e, variable)
}

func isVariable(e expr, variable string) bool {
	switch e := e.(type) {
	case *nameExpr:
		return e.name == variable
	case *attrExpr:
		base, attr, dotted := strings.Cut(variable, ".")
		return dotted && e.name == attr && isVariable(e.of, base)
	}
	return false
}

package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// forbiddenPhrase is a wording which the style forbids in comments. Limit is how often it may be in 10,000 words of
// comments. A limit of 0 is also for the comments of tests, and for documents.
type forbiddenPhrase struct {
	Name  string
	Limit float64
	re    *regexp.Regexp
}

// forbiddenPhrases are counted in comments.
func forbiddenPhrases() []forbiddenPhrase {
	var out []forbiddenPhrase
	for _, p := range []struct {
		name  string
		limit float64
		re    string
	}{
		{"those that/who/of", 1, `\bthose\s+(that|who|of)\b`},
		{"nobody, whoever, somebody, anybody", 0, `\b(nobody|whoever|whomever|somebody|anybody)\b`},
		{"of which", 2, `\bof\s+(which|whom)\b`},
		{"who", 2, `\bwhom?\b`},
		{"besides, behind, so many", 2, `\bbesides\b|\bso many\b|\blikewise\b|\bby and by\b`},
		{"ritual phrases", 2, `own affair|became of|\bhe\b|\bhis\b`},
	} {
		out = append(out, forbiddenPhrase{p.name, p.limit, regexp.MustCompile(`(?i)` + p.re)})
	}
	return out
}

// wordCounts are the counts of one package, or of all.
type wordCounts struct {
	Functions int            `json:"functions"`
	Single    int            `json:"single_word"`
	Letters   int            `json:"letters"`
	Words     int            `json:"comment_words"`
	Phrases   map[string]int `json:"phrases"`
	LongLines int            `json:"lines_over_120"`
	Lines     int            `json:"lines"`
}

func (c *wordCounts) addCounts(d *wordCounts) {
	c.Functions += d.Functions
	c.Single += d.Single
	c.Letters += d.Letters
	c.Words += d.Words
	c.LongLines += d.LongLines
	c.Lines += d.Lines
	for k, n := range d.Phrases {
		c.Phrases[k] += n
	}
}

// measurement has all counts, by directory.
type measurement struct {
	packages map[string]*wordCounts
	types    map[string][]string // the directories which declare a type
	singles  []string            // functions with a name of one word, with their positions
	found    []string            // forbidden phrases, with their positions
	refused  []string            // the found ones whose limit is 0
	phrases  []forbiddenPhrase
}

func measureTree(roots []string, tests bool) (*measurement, error) {
	m := &measurement{packages: map[string]*wordCounts{}, types: map[string][]string{}, phrases: forbiddenPhrases()}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if name := d.Name(); d.IsDir() && path != root && (name == "testdata" || name == "node_modules" || len(name) > 1 && strings.HasPrefix(name, ".")) {
				return filepath.SkipDir
			}
			if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") != tests {
				return nil
			}
			return m.readFile(path)
		})
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *measurement) readFile(path string) error {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := filepath.ToSlash(filepath.Dir(path))
	c := m.packages[dir]
	if c == nil {
		c = &wordCounts{Phrases: map[string]int{}}
		m.packages[dir] = c
	}
	at := func(p token.Pos) string {
		pos := fset.Position(p)
		return fmt.Sprintf("%s:%d", path, pos.Line)
	}
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if name == "main" || name == "init" || name == "_" {
				continue
			}
			c.Functions++
			c.Letters += len(name)
			if countWords(name) < 2 {
				c.Single++
				m.singles = append(m.singles, at(decl.Pos())+": "+receiverPrefix(decl)+name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok && !slices.Contains(m.types[t.Name.Name], dir) {
					m.types[t.Name.Name] = append(m.types[t.Name.Name], dir)
				}
			}
		}
	}
	for _, group := range f.Comments {
		text := group.Text()
		c.Words += len(strings.Fields(text))
		for _, p := range m.phrases {
			for _, hit := range p.re.FindAllString(text, -1) {
				c.Phrases[p.Name]++
				m.found = append(m.found, fmt.Sprintf("%s: %q", at(group.Pos()), hit))
			}
		}
		for _, hit := range m.findRefused(text) {
			m.refused = append(m.refused, fmt.Sprintf("%s: %q", at(group.Pos()), hit))
		}
	}
	file := fset.File(f.Pos())
	c.Lines += file.LineCount()
	return nil
}

// findRefused returns the phrases in a text whose limit is 0.
func (m *measurement) findRefused(text string) []string {
	var out []string
	for _, p := range m.phrases {
		if p.Limit == 0 {
			out = append(out, p.re.FindAllString(text, -1)...)
		}
	}
	return out
}

func receiverPrefix(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	t := d.Recv.List[0].Type
	if s, ok := t.(*ast.StarExpr); ok {
		t = s.X
	}
	if g, ok := t.(*ast.IndexExpr); ok {
		t = g.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "."
	}
	return "?."
}

// countWords counts the words of a name in mixed caps: parseURL has two.
func countWords(name string) int {
	n := 0
	var before rune
	runes := []rune(name)
	for i, r := range runes {
		upper := unicode.IsUpper(r)
		next := i+1 < len(runes) && unicode.IsLower(runes[i+1])
		if i == 0 || upper && (!unicode.IsUpper(before) || next) {
			n++
		}
		before = r
	}
	return n
}

// styleSummary has the figures which the style bounds.
type styleSummary struct {
	wordCounts
	MeanLength  float64             `json:"mean_length"`
	SingleShare float64             `json:"single_share"`
	Per10000    map[string]float64  `json:"per_10000_comment_words"`
	SharedTypes map[string][]string `json:"types_in_more_than_two_packages"`
}

func (m *measurement) summarize() styleSummary {
	total := wordCounts{Phrases: map[string]int{}}
	for _, c := range m.packages {
		total.addCounts(c)
	}
	s := styleSummary{wordCounts: total, MeanLength: total.meanLength(), SingleShare: total.singleShare(), Per10000: map[string]float64{}, SharedTypes: map[string][]string{}}
	for k, n := range total.Phrases {
		s.Per10000[k] = float64(n) / float64(max(total.Words, 1)) * 1e4
	}
	for name, dirs := range m.types {
		if len(dirs) > 2 {
			slices.Sort(dirs)
			s.SharedTypes[name] = dirs
		}
	}
	return s
}

func (c *wordCounts) meanLength() float64 { return float64(c.Letters) / float64(max(c.Functions, 1)) }

func (c *wordCounts) singleShare() float64 { return float64(c.Single) / float64(max(c.Functions, 1)) }

func (m *measurement) printSummary(w io.Writer, byPackage bool) {
	line := func(name string, c *wordCounts) {
		n := 0
		for _, k := range c.Phrases {
			n += k
		}
		fmt.Fprintf(w, "%-40s %6d functions  mean length %5.2f  single words %3.0f %%  phrases %4d in %6d words\n",
			name, c.Functions, c.meanLength(), 100*c.singleShare(), n, c.Words)
	}
	if byPackage {
		for _, dir := range slices.Sorted(maps.Keys(m.packages)) {
			line(dir, m.packages[dir])
		}
	}
	s := m.summarize()
	line("all", &s.wordCounts)
	for _, p := range m.phrases {
		fmt.Fprintf(w, "%-40s %6.1f in 10,000 comment words\n", p.Name, s.Per10000[p.Name])
	}
	shared := slices.SortedFunc(maps.Keys(s.SharedTypes), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(s.SharedTypes[b]), len(s.SharedTypes[a])), strings.Compare(a, b))
	})
	for _, name := range shared {
		fmt.Fprintf(w, "type %s in %d packages\n", name, len(s.SharedTypes[name]))
	}
}

func (m *measurement) printFound(w io.Writer) {
	for _, s := range slices.Sorted(slices.Values(m.found)) {
		fmt.Fprintln(w, s)
	}
	for _, s := range m.singles {
		fmt.Fprintln(w, s)
	}
}

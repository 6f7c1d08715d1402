package penstock_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock/core/route"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
)

// TestDocumentLinks: every link of a document to a file leads to one which exists, and to a heading or an anchor in it.
func TestDocumentLinks(t *testing.T) {
	links := 0
	err := eachDocument(func(name, text string) {
		for _, target := range linkTargets(text) {
			links++
			if !leadsSomewhere(name, target) {
				t.Errorf("%s: the link %s leads nowhere", name, target)
			}
		}
	})
	if err != nil || links < 300 {
		t.Errorf("%d links in all documents: %v", links, err)
	}
	for _, target := range []string{"nothing.md", "roadmap.md#nothing", "#nothing"} {
		if leadsSomewhere("docs/glossary.md", target) {
			t.Errorf("%s leads somewhere", target)
		}
	}
}

// eachDocument calls visit with the path and the text of every document of the repository.
func eachDocument(visit func(name, text string)) error {
	return filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() && name != "." && (base == "testdata" || base == "node_modules" || base[0] == '.') {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, ".md") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		visit(name, string(text))
		return nil
	})
}

// linkTarget matches a link to a file, with its target in parentheses.
var linkTarget = regexp.MustCompile(`\]\(([^):\s]+)\)`)

// linkTargets returns the targets of the links of a page, except in code and to other hosts.
func linkTargets(text string) (targets []string) {
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced || strings.HasPrefix(line, "    ") {
			continue
		}
		for _, m := range linkTarget.FindAllStringSubmatch(line, -1) {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// leadsSomewhere reports whether a link of a page has a file and, if it names one, a heading or an anchor.
func leadsSomewhere(page, target string) bool {
	file, anchor, has := strings.Cut(target, "#")
	if file != "" {
		page = path.Join(path.Dir(filepath.ToSlash(page)), file)
	}
	if !has {
		_, err := os.Stat(filepath.FromSlash(page))
		return err == nil
	}
	text, err := os.ReadFile(filepath.FromSlash(page))
	if err != nil {
		return false
	}
	if strings.Contains(string(text), `<a id="`+anchor+`"></a>`) {
		return true
	}
	for line := range strings.Lines(string(text)) {
		if heading := strings.TrimLeft(line, "#"); heading != line && headingAnchor(heading) == anchor {
			return true
		}
	}
	return false
}

// headingAnchor is the anchor of a heading: lower case, hyphens for spaces, without other punctuation.
func headingAnchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(heading)) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		}
	}
	return b.String()
}

// declaration is a function, method, type, variable or constant of the product.
type declaration struct {
	file string
	name string // of a method Type.name
}

// listDeclarations returns what each package declares.
func listDeclarations(t *testing.T) map[string][]declaration {
	t.Helper()
	all := map[string][]declaration{}
	sources(t, func(fset *token.FileSet, pkg string, f *ast.File) {
		file := filepath.ToSlash(fset.Position(f.Package).Filename)
		for _, name := range declaredNames(f) {
			all[pkg] = append(all[pkg], declaration{file, name})
		}
	})
	return all
}

// declaredNames returns the functions, methods, types, variables and constants which a file declares.
func declaredNames(f *ast.File) (names []string) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, receiverPrefix(d)+d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}

// receiverPrefix returns the type of a method and a dot; "" for a function.
func receiverPrefix(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	prefix := ""
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && prefix == "" {
			prefix = id.Name + "."
		}
		return true
	})
	return prefix
}

// checkNamed checks that a name, alone or as Type.method, is declared once among all.
func checkNamed(t *testing.T, where, name string, all []declaration) {
	t.Helper()
	n := 0
	for _, d := range all {
		if d.name == name || strings.HasSuffix(d.name, "."+name) {
			n++
		}
	}
	switch {
	case n == 0:
		t.Errorf("%s: there is no %s", where, name)
	case n > 1:
		t.Errorf("%s: there are %d of %s, so write its receiver too", where, n, name)
	}
}

// cutSection returns a section of a page, without its heading.
func cutSection(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %s", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// codeRows returns the cells of the rows of a table whose cell at an index is code.
func codeRows(section string, code int) (rows [][]string) {
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) > code && strings.HasPrefix(cells[code], "`") {
			rows = append(rows, cells)
		}
	}
	return rows
}

// codeNames returns the names in a cell, which are code and separated by commas.
func codeNames(cell string) (names []string) {
	for name := range strings.SplitSeq(cell, ",") {
		names = append(names, strings.Trim(name, "` "))
	}
	return names
}

// TestWhereToFind: what the table of ARCHITECTURE.md leads to is declared in the file which it says, and the table
// answers what new readers were asked, or asked next.
func TestWhereToFind(t *testing.T) {
	all := listDeclarations(t)
	var asked []string
	for _, row := range codeRows(cutSection(t, "ARCHITECTURE.md", "## Where to find it"), 1) {
		if len(row) != 4 {
			t.Errorf("%q has %d cells", row, len(row))
			continue
		}
		asked = append(asked, row[0])
		file := strings.Trim(row[1], "`")
		inFile := slices.DeleteFunc(slices.Clone(all[path.Dir(file)]), func(d declaration) bool { return d.file != file })
		for _, name := range codeNames(row[2]) {
			checkNamed(t, row[0]+" in "+file, name, inFile)
		}
		if len(linkTargets(row[3])) == 0 {
			t.Errorf("%s: no page explains it", row[0])
		}
	}
	for _, want := range []string{
		"cost of a worker", "which gets it", "lost KV event", "a router asks", "a worker repeats", "API key",
		"tool calls", "metrics", "images", "chat template", "tokens", "dispatched", "does not answer", "settings",
		"KV blocks",
	} {
		if !slices.ContainsFunc(asked, func(row string) bool { return strings.Contains(row, want) }) {
			t.Errorf("the table does not say where to find %q", want)
		}
	}
}

// TestJourneys: the functions through which ARCHITECTURE.md follows a request and an event are in the packages which it
// says. There are at most 25 of each; one of several with its name has its receiver.
func TestJourneys(t *testing.T) {
	all := listDeclarations(t)
	for _, title := range []string{"## 2. A chat request", "## 3. A KV event"} {
		found := 0
		for _, row := range codeRows(cutSection(t, "ARCHITECTURE.md", title), 0) {
			pkg := strings.Trim(row[0], "`")
			for _, name := range codeNames(row[1]) {
				found++
				checkNamed(t, title+", "+pkg, name, all[pkg])
			}
		}
		if found < 10 || found > 25 {
			t.Errorf("%s: %d functions, want 10 to 25", title, found)
		}
	}
}

// namedFile matches a name which is followed by its file.
var namedFile = regexp.MustCompile("`([\\w.]+)`\\s+\\(`([\\w/]+\\.go)`\\)")

// TestNamedFiles: what a sentence names, with its file in parentheses, is declared there.
func TestNamedFiles(t *testing.T) {
	for _, page := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := namedFile.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s names no file", page)
		}
		for _, m := range found {
			name, file := m[1], m[2]
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			var all []declaration
			for _, declared := range declaredNames(f) {
				all = append(all, declaration{file, declared})
			}
			checkNamed(t, page+" of "+file, name, all)
		}
	}
}

// TestTermsOfCost: the pages give the terms of the cost in mode time the names which they have in JSON.
func TestTermsOfCost(t *testing.T) {
	var terms []string
	for typ, i := reflect.TypeFor[route.TimeCost](), 0; i < typ.NumField(); i++ {
		terms = append(terms, typ.Field(i).Tag.Get("json"))
	}
	_, section, _ := strings.Cut(cutSection(t, "docs/router.md", "## How it decides"), "\n### Mode `time`\n")
	_, section, _ = strings.Cut(section, "\n    cost = ")
	formula, section, _ := strings.Cut(section, "\n")
	_, section, _ = strings.Cut(section, "\n| term | time |\n|---|---|\n")
	table, _, _ := strings.Cut(section, "\n\n")
	var rows []string
	for line := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		rows = append(rows, strings.Split(footnote.ReplaceAllString(cell, ""), ", ")...)
	}
	_, list, _ := strings.Cut(cutSection(t, "docs/router-api.md", "## Questions about a prompt"), "* `time_ms`, in mode `time` only: ")
	list, _, _ = strings.Cut(list, " (")
	for where, have := range map[string][]string{
		"the formula of docs/router.md": strings.FieldsFunc(formula, func(r rune) bool { return strings.ContainsRune(" +-", r) }),
		"the table of docs/router.md":   rows,
		"docs/router-api.md":            codeNames(strings.ReplaceAll(list, "\n", " ")),
	} {
		slices.Sort(have)
		if want := slices.Sorted(slices.Values(terms)); !slices.Equal(have, want) {
			t.Errorf("%s has the terms %q, want %q", where, have, want)
		}
	}
}

// footnote matches the number of a footnote in a cell.
var footnote = regexp.MustCompile(` \(\d\)`)

// TestWorkerStates: the pages list the states in which a worker can be.
func TestWorkerStates(t *testing.T) {
	states := []string{
		engine.StateReady, engine.StateDraining, engine.StateNotReady, readiness.StateSuspect, readiness.StateQuarantined,
		readiness.StateUnconfirmed, readiness.StateUnfit, readiness.StateError,
	}
	for page, form := range map[string]string{"docs/router-api.md": "\n| `%s` |", "docs/ops/probes.md": "`%s`"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, state := range states {
			if !strings.Contains(string(text), strings.ReplaceAll(form, "%s", state)) {
				t.Errorf("%s does not list the state %s", page, state)
			}
		}
	}
}

// TestFootnotes: the footnotes of a table are numbered in the order in which its cells mention them, and all are mentioned.
func TestFootnotes(t *testing.T) {
	tables := 0
	err := eachDocument(func(name, text string) {
		for _, m := range footnotedTable.FindAllStringSubmatch(text, -1) {
			tables++
			if wrong := checkFootnotes(m[1], m[2]); wrong != "" {
				t.Errorf("%s: %s, after\n%s", name, wrong, m[1])
			}
		}
	})
	if err != nil || tables < 30 {
		t.Errorf("%d tables with footnotes in all documents: %v", tables, err)
	}
	for _, wrong := range []string{"| a (2) | b (1) |\n", "| a (1) |\n", "| a (1) | `b (2)` |\n", "| a (1) | b (3) |\n"} {
		if checkFootnotes(wrong, "1. x\n2. y\n   z\n") == "" {
			t.Errorf("%q may have two footnotes", wrong)
		}
	}
}

var (
	// footnotedTable matches a table and the numbered list which follows it.
	footnotedTable = regexp.MustCompile(`((?:(?m:^)\|.*\n)+)\n+(1\. .*\n(?:(?:\d+\. |  ).*\n)*)`)
	// inlineCode matches code in a line, footnoteNumbers the numbers of footnotes, and footnoteStart their texts' beginnings.
	inlineCode      = regexp.MustCompile("`[^`]*`")
	footnoteNumbers = regexp.MustCompile(`\((\d+(?:, \d+)*)\)`)
	footnoteStart   = regexp.MustCompile(`(?m)^\d+\. `)
)

// checkFootnotes says what is wrong with the numbers of footnotes in a table; "" if nothing is.
func checkFootnotes(table, list string) string {
	notes := len(footnoteStart.FindAllString(list, -1))
	var mentioned []string
	for _, m := range footnoteNumbers.FindAllStringSubmatch(inlineCode.ReplaceAllString(table, ""), -1) {
		for number := range strings.SplitSeq(m[1], ", ") {
			if !slices.Contains(mentioned, number) {
				mentioned = append(mentioned, number)
			}
		}
	}
	want := make([]string, notes)
	for i := range want {
		want[i] = strconv.Itoa(i + 1)
	}
	if !slices.Equal(mentioned, want) {
		return fmt.Sprintf("%d footnotes are mentioned in the order %s", notes, strings.Join(mentioned, " "))
	}
	return ""
}

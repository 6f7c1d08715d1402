package penstock_test

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentLinks: every link of a document to a file leads to one which exists, and to a heading or an anchor in it.
func TestDocumentLinks(t *testing.T) {
	links := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
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
		for _, target := range linkTargets(string(text)) {
			links++
			if !leadsSomewhere(name, target) {
				t.Errorf("%s: the link %s leads nowhere", name, target)
			}
		}
		return nil
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

// TestWhereToFind: what the table of ARCHITECTURE.md leads to is declared in the package which it says, and the table
// answers what new readers were asked.
func TestWhereToFind(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{} // package, a space, name
	sources(t, func(_ *token.FileSet, pkg string, f *ast.File) {
		for _, name := range declaredNames(f) {
			declared[pkg+" "+name] = true
		}
	})
	_, section, _ := strings.Cut(string(text), "\n## Where to find it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var asked []string
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 4 || !strings.HasPrefix(cells[1], "`") {
			continue
		}
		asked = append(asked, strings.TrimSpace(cells[0]))
		pkg := strings.Trim(cells[1], "` ")
		for name := range strings.SplitSeq(cells[2], ",") {
			if name = strings.Trim(name, "` "); !declared[pkg+" "+name] {
				t.Errorf("%s: there is no %s in %s", cells[0], name, pkg)
			}
		}
		if len(linkTargets(cells[3])) == 0 {
			t.Errorf("%s: no page explains it", cells[0])
		}
	}
	for _, want := range []string{"cost of a worker", "lost KV event", "API key", "tool calls", "metric", "images"} {
		if !slices.ContainsFunc(asked, func(row string) bool { return strings.Contains(row, want) }) {
			t.Errorf("the table does not say where to find %q", want)
		}
	}
}

// declaredNames returns the functions, methods, types, variables and constants which a file declares.
func declaredNames(f *ast.File) (names []string) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, d.Name.Name)
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

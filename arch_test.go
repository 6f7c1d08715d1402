package penstock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "penstock/"

// rank orders the tree from the bottom up; the longest matching key wins. A key ending in "/" matches
// packages below it, otherwise also the package itself. A package may import lower ranks, its own parents and
// children, and the siblings listed in mayImport.
var rank = map[string]int{
	"core/kv": 0, "core/fault": 0, "core/exact": 0, "core/splitmix": 0,
	"core/": 1, "internal/backoff": 1, "internal/strictjson": 1, "internal/reload": 1, "internal/fixturetest": 1,
	"internal/zmtp": 1, "internal/media": 1, "internal/bounded": 1,
	"internal/plane": 2, "internal/catalog": 2, "internal/edge": 2, "internal/obs": 2, "internal/dispatch": 2, "internal/engine": 2, "internal/holders": 2, "internal/embregion": 2, "internal/embtier": 2,
	"internal/engine/watch": 1, "internal/engine/batch": 2, "internal/engine/remote": 2, "internal/engine/": 3,
	"internal/serve": 3, "internal/planner": 3, "internal/replay": 3, "internal/enginemock": 3, "internal/enginemock/enginemocktest": 4,
	"internal/config": 4, "internal/node": 4, "internal/doctor": 4, "internal/simcluster": 4,
	"cmd": 5, "test": 5, "bench": 5,
}

var mayImport = map[string][]string{
	"core/route":                         {"core/activeseq", "core/rates"},                            // choosing, reserving and learning are one step
	"core/disagg":                        {"core/rates"},                                              // decides by what was learned of workers
	"core/plan":                          {"core/rates"},                                              // sizes fleets by it
	"internal/dispatch":                  {"internal/obs", "internal/engine", "internal/catalog"},     // attempts are spans, and calls of the engine contract
	"internal/catalog":                   {"internal/plane/disco", "internal/engine", "internal/obs"}, // reads cards in the registry
	"internal/holders":                   {"internal/plane/bus", "internal/engine", "internal/obs"},   // follows the workers' events
	"internal/embregion":                 {"internal/plane/xfer", "internal/obs"},                     // shares memory by its regions
	"internal/embtier":                   {"internal/obs"},                                            // damaged entries are logged seldom
	"internal/plane/bus":                 {"internal/plane/natsd"},
	"internal/plane/rpc":                 {"internal/plane/natsd", "internal/plane/endpoint"},
	"internal/plane/disco":               {"internal/plane/natsd"},
	"internal/plane/xfer":                {"internal/plane/endpoint"},
	"internal/edge/openai":               {"internal/edge/api"},                                      // a dialect of it
	"internal/edge/anthropic":            {"internal/edge/api"},                                      // a dialect of it
	"internal/edge/openai/responses":     {"internal/edge/api"},                                      // a dialect of it
	"internal/edge/readiness":            {"internal/engine"},                                        // shows the warnings of engines
	"internal/edge/prep/chat":            {"internal/edge/prep/token", "internal/edge/prep/jinja"},   // opens tokenizer and template of one model
	"internal/engine/tiny/model":         {"internal/engine/tiny/checkpoint"},                        // a model is made of a checkpoint
	"internal/zmtp":                      {"internal/backoff"},                                       // redials peers
	"internal/media/probe":               {"core/media"},                                             // says what kind of object it read
	"internal/media/fetch":               {"core/media", "internal/media/probe", "internal/bounded"}, // reads media as far as necessary
	"internal/media/pixel":               {"core/media", "internal/media/probe"},                     // decodes what was probed
	"internal/enginemock/enginemocktest": {"internal/config"},                                        // the engines which its servers wrap, and test support
	"internal/node":                      {"internal/config", "internal/doctor"},
	"internal/node/engines":              {"internal/config"},
	"internal/node/planes":               {"internal/config"},
	"internal/doctor":                    {"internal/config", "internal/node/engines", "internal/node/planes"}, // opens what it checks
	"bench/embeddings":                   {"bench/child"},                                                      // measures what it starts
	"bench/feeds":                        {"bench/child"},                                                      // measures what it starts
	"bench/gateway":                      {"bench/child"},                                                      // measures what it starts
	"bench/media":                        {"bench/child"},                                                      // measures what it starts
	"bench/replicas":                     {"test/fleet"},                                                       // measures what it starts
	"test/chaos":                         {"test/fleet"},                                                       // disturbs what it starts
	"test/latency":                       {"test/fleet"},                                                       // measures what it starts
	"test/planes":                        {"test/fleet"},                                                       // measures what it starts
	"test/soak":                          {"test/fleet"},                                                       // measures what it starts
}

// mayImportOnly restricts packages further than their layer.
var mayImportOnly = map[string][]string{
	"internal/backoff":    {},
	"internal/bounded":    {},
	"internal/reload":     {},
	"internal/strictjson": {"core/fault", "core/kv"},
	"internal/zmtp":       {"internal/backoff"},
	"cmd/penstock":        {"core/route", "internal/node", "internal/node/engines", "internal/doctor", "internal/config", "internal/edge/keys", "internal/engine", "internal/planner", "internal/simcluster", "internal/replay", "internal/replay/", "internal/engine/sim"},
	"internal/simcluster": {"core/", "internal/engine", "internal/engine/sim", "internal/replay"}, // machines, not services
}

// Core is deterministic: it must not use these packages, with the packages below them, and these functions.
var (
	impureImport = []string{"context", "crypto/rand", "hash/maphash", "log", "math/rand", "net", "os", "runtime", "sync", "syscall"}
	impureCall   = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Tick"}
	coreThird    = map[string][]string{"core/kv": {"github.com/zeebo/xxh3"}}
	// The packages with atomics, which order one writer and many readers, or processes which share memory; they start
	// nothing and wait for nothing.
	coreAtomic = []string{"core/prefix", "core/pool"}
)

func rankOf(pkg string) int {
	best, r := -1, -1
	for key, v := range rank {
		match := strings.HasPrefix(pkg, strings.TrimSuffix(key, "/")+"/") || pkg == key
		if match && len(key) > best {
			best, r = len(key), v
		}
	}
	return r
}

// sources calls visit with every parsed Go file of the product, and its package.
func sources(t *testing.T, visit func(fset *token.FileSet, pkg string, f *ast.File)) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "examples" || d.Name() == "tools"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		visit(fset, path.Dir(filepath.ToSlash(file)), f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestArchitecture(t *testing.T) {
	documented := map[string]bool{}
	sources(t, func(fset *token.FileSet, pkg string, f *ast.File) {
		from := rankOf(pkg)
		if from < 0 {
			t.Errorf("%s: %s has no rank; place it in the layer table and say why", fset.Position(f.Package), pkg)
			return
		}
		documented[pkg] = documented[pkg] || f.Doc != nil
		core := strings.HasPrefix(pkg, "core/")

		for _, im := range f.Imports {
			p, _ := strconv.Unquote(im.Path.Value)
			at := fset.Position(im.Pos())
			dep, local := strings.CutPrefix(p, module)
			if !local {
				switch {
				case core && strings.Contains(p, ".") && !slices.Contains(coreThird[pkg], p):
					t.Errorf("%s: core imports %s; core is standard library only", at, p)
				case p == "sync/atomic" && slices.Contains(coreAtomic, pkg):
				case core && slices.ContainsFunc(impureImport, func(bad string) bool { return p == bad || strings.HasPrefix(p, bad+"/") }):
					t.Errorf("%s: core imports %s; pass what you need in as data", at, p)
				}
				continue
			}
			to := rankOf(dep)
			family := strings.HasPrefix(dep, pkg+"/") || strings.HasPrefix(pkg, dep+"/")
			only, narrowed := mayImportOnly[pkg]
			switch {
			case narrowed && !slices.ContainsFunc(only, func(p string) bool {
				return dep == p || strings.HasSuffix(p, "/") && strings.HasPrefix(dep, p)
			}):
				t.Errorf("%s: %s may import only %v, not %s", at, pkg, only, dep)
			case strings.HasSuffix(dep, "test") && !strings.HasSuffix(pkg, "test"):
				t.Errorf("%s: %s imports test support %s", at, pkg, dep)
			case to > from && !family:
				t.Errorf("%s: %s (layer %d) imports %s (layer %d)", at, pkg, from, dep, to)
			case to == from && !family && !slices.Contains(mayImport[pkg], dep):
				t.Errorf("%s: %s imports its sibling %s; meet through a plane or a lower layer", at, pkg, dep)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				if core {
					t.Errorf("%s: go statement in core", fset.Position(n.Pos()))
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && core && slices.Contains(impureCall, x.Name+"."+n.Sel.Name) {
					t.Errorf("%s: %s.%s in core; take now as an argument", fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			}
			return true
		})
	})
	tree, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment", pkg)
		}
		if !strings.Contains(string(tree), path.Base(pkg)+"/") {
			t.Errorf("%s: ARCHITECTURE.md does not say where it is", pkg)
		}
	}
}

// TestStyle checks the rules of STYLE.md which the source text shows.
func TestStyle(t *testing.T) {
	sources(t, func(fset *token.FileSet, pkg string, f *ast.File) {
		bad := func(n ast.Node, format string, args ...any) {
			t.Errorf("%s: "+format, append([]any{fset.Position(n.Pos())}, args...)...)
		}
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					bad(d, "func init; let the caller construct what it needs")
				}
				if d.Name.IsExported() && exportedReceiver(d) {
					if d.Doc == nil {
						bad(d, "%s has no comment", d.Name)
					}
					for _, p := range d.Type.Params.List {
						if id, ok := p.Type.(*ast.Ident); ok && id.Name == "bool" {
							bad(p, "%s has a boolean parameter; give the two cases names", d.Name)
						}
					}
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if name := undocumented(d, spec); name != "" {
						bad(spec, "%s has no comment", name)
					}
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && pkg != "internal/config" {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" && (s.Sel.Name == "Getenv" || s.Sel.Name == "LookupEnv") {
					bad(n, "os.%s outside internal/config; make it a setting", s.Sel.Name)
				}
			}
			return true
		})
	})
}

// exportedReceiver reports whether d is a function, or a method of an exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if g, ok := typ.(*ast.IndexExpr); ok {
		typ = g.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

// undocumented returns the exported name in spec if neither spec nor its group has a comment.
func undocumented(d *ast.GenDecl, spec ast.Spec) string {
	if d.Doc != nil {
		return ""
	}
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && s.Doc == nil {
			return s.Name.Name
		}
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && s.Doc == nil && s.Comment == nil {
				return name.Name
			}
		}
	}
	return ""
}

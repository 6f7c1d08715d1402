package penstock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "penstock/"

// rank orders the tree from the bottom up; the longest matching key wins. A key
// ending in "/" matches packages below it, otherwise the package itself too.
// A package may import lower ranks, its own parents and children, and the
// siblings listed in mayImport.
var rank = map[string]int{
	"core/kv": 0, "core/fault": 0,
	"core/":          1,
	"internal/plane": 2, "internal/edge": 2, "internal/obs": 2, "internal/engine": 2,
	"internal/engine/": 3, "internal/serve": 3, "internal/replay": 3,
	"internal/config": 4, "internal/node": 4, "internal/simcluster": 4,
	"cmd": 5, "test": 5,
}

var mayImport = map[string][]string{
	"core/route":                 {"core/slots"}, // choosing and reserving are one step
	"internal/plane/bus":         {"internal/plane/natsd"},
	"internal/plane/rpc":         {"internal/plane/natsd"},
	"internal/plane/disco":       {"internal/plane/natsd"},
	"internal/edge/prep/chat":    {"internal/edge/prep/token"},        // opens tokenizer and template of one model
	"internal/engine/tiny/model": {"internal/engine/tiny/checkpoint"}, // a model is made of a checkpoint
	"internal/node":              {"internal/config"},
}

// mayImportOnly narrows what its layer would allow.
var mayImportOnly = map[string][]string{
	"cmd/penstock":        {"internal/node", "internal/config", "internal/simcluster", "internal/replay"},
	"internal/simcluster": {"core/", "internal/engine", "internal/engine/sim", "internal/replay"}, // machines, not services
}

// Core is deterministic: these packages and calls would make it a service.
var (
	impureImport = []string{"context", "log", "log/slog", "math/rand", "math/rand/v2", "net", "net/http", "os", "sync"}
	impureCall   = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Tick"}
	mayLock      = []string{"core/prefix"} // concurrency is part of the algorithm
	coreThird    = map[string][]string{"core/kv": {"github.com/zeebo/xxh3"}}
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

func TestArchitecture(t *testing.T) {
	fset := token.NewFileSet()
	documented := map[string]bool{}
	filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "examples" || d.Name() == "tools"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		pkg := path.Dir(filepath.ToSlash(file))
		from := rankOf(pkg)
		if from < 0 {
			t.Errorf("%s: %s has no rank; place it in the layer table and say why", file, pkg)
			return nil
		}
		f, err := parser.ParseFile(fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
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
				case core && slices.Contains(impureImport, p) && !(p == "sync" && slices.Contains(mayLock, pkg)):
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
		return nil
	})
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment", pkg)
		}
	}
}

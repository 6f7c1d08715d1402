package penstock_test

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sameEverywhere are the packages whose results are the same bytes on every kind of
// machine.
var sameEverywhere = []string{
	"core/exact", "core/kvfeed", "core/health", "core/kv", "core/media", "core/media/family", "core/migrate", "core/paged", "core/plan",
	"core/prefix", "core/poolindex", "core/route", "core/route/queue", "core/activeseq", "core/activeseq/replica",
	"core/snapshot", "core/splitmix",
	"internal/engine/sim",
	"internal/engine/tiny/patch",
	"internal/engine/tiny/sample",
	"internal/media/pixel",
	"internal/replay", "internal/replay/report",
	"internal/simcluster",
}

// fused is an instruction of arm64 that multiplies and adds with one rounding.
var fused = regexp.MustCompile(`\(([^()]*\.go:[0-9]+)\)\s+FN?M(?:ADD|SUB)[SD]\s`)

// TestNothingIsFused: the language allows x*y + z to be rounded once instead of
// twice, and the compilers for arm64, ppc64, riscv64 and s390x do so; that for amd64
// does not. float64(x*y) + z forbids it. Packages that promise the same result
// everywhere are compiled for arm64 and looked through.
func TestNothingIsFused(t *testing.T) {
	args := []string{"build", "-gcflags=-S"}
	for _, pkg := range sameEverywhere {
		readSources(t, pkg)
		args = append(args, "./"+pkg)
	}
	code := compileForARM(t, ".", args)
	for _, pkg := range sameEverywhere {
		if !strings.Contains(code, "# penstock/"+pkg+"\n") {
			t.Errorf("no code of %s to look through", pkg)
		}
	}
	for _, at := range fused.FindAllStringSubmatch(code, -1) {
		t.Errorf("%s: a product is fused with a sum; write float64(x*y) + z", at[1])
	}
}

// exactMath are the functions of package math with one right result, which every
// processor gives.
var exactMath = []string{
	"Abs", "Ceil", "Float32bits", "Float32frombits", "Float64bits", "Float64frombits", "Floor",
	"Frexp", "Inf", "IsInf", "IsNaN", "Ldexp", "Max", "Min", "NaN", "Nextafter", "Round", "RoundToEven", "Sqrt", "Trunc",
}

// TestMathIsExact refuses the other ones, such as math.Exp, to packages that promise
// the same result everywhere; core/exact has two of them.
func TestMathIsExact(t *testing.T) {
	sources(t, func(fset *token.FileSet, pkg string, f *ast.File) {
		if !slices.Contains(sameEverywhere, pkg) {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "math" && !slices.Contains(exactMath, s.Sel.Name) {
					t.Errorf("%s: math.%s differs between processors", fset.Position(n.Pos()), s.Sel.Name)
				}
			}
			return true
		})
	})
}

// TestFusedIsSeen says that the look above would see it.
func TestFusedIsSeen(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module fuse\n\ngo 1.26\n",
		"fuse.go": "package fuse\n\n" +
			"func Fused(x, y, z float64) float64 { return x*y + z }\n" +
			"func Guarded(x, y, z float64) float64 { return z - float64(x*y) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code := compileForARM(t, dir, []string{"build", "-gcflags=-S", "."})
	at := fused.FindAllStringSubmatch(code, -1)
	if len(at) != 1 || !strings.HasSuffix(at[0][1], "fuse.go:3") {
		t.Errorf("seen: %q, want line 3 alone", at)
	}
}

func compileForARM(t *testing.T, dir string, args []string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
	return string(out)
}

// readSources opens what is to be compiled, since go test repeats a result as long as
// the files that the test itself opened are unchanged.
func readSources(t *testing.T, pkg string) {
	t.Helper()
	err := filepath.WalkDir(pkg, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

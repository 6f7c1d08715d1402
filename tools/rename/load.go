package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// A configuration is one build of the tree.
type configuration struct {
	dir      string
	env      []string
	patterns []string
}

// loadConfigurations loads the module for each operating system and experiment of which it has files, and the further modules.
func loadConfigurations(dir, more string) ([][]*packages.Package, error) {
	debug.SetGCPercent(400)
	constrained, err := constrainedDirectories(dir)
	if err != nil {
		return nil, err
	}
	configurations := []configuration{{dir, nil, []string{"./..."}}}
	for _, env := range []string{"GOEXPERIMENT=simd", "GOOS=windows", "GOOS=darwin"} {
		configurations = append(configurations, configuration{dir, []string{env}, constrained})
	}
	for d := range strings.SplitSeq(more, ",") {
		if d != "" {
			configurations = append(configurations, configuration{filepath.Join(dir, d), nil, []string{"./..."}})
		}
	}
	var loads [][]*packages.Package
	for i, c := range configurations {
		cfg := &packages.Config{
			Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedSyntax | packages.NeedTypes |
				packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps | packages.NeedModule,
			Dir: c.dir, Tests: true, Env: append(append(os.Environ(), "CGO_ENABLED=0"), c.env...),
		}
		pkgs, err := packages.Load(cfg, c.patterns...)
		if err != nil {
			return nil, fmt.Errorf("load %s %v: %w", c.dir, c.env, err)
		}
		failed := 0
		packages.Visit(pkgs, nil, func(p *packages.Package) {
			for _, e := range p.Errors {
				if p.Module != nil && strings.HasPrefix(p.PkgPath, cmp.Or(p.Module.Path, "?")) && inside(dir, p) {
					fmt.Fprintf(os.Stderr, "%v: %v\n", c.env, e)
					failed++
				}
			}
		})
		if failed > 0 && i == 0 {
			return nil, fmt.Errorf("%d errors in %s", failed, c.dir)
		}
		loads = append(loads, pkgs)
	}
	return loads, nil
}

// inside reports whether p's files are below dir.
func inside(dir string, p *packages.Package) bool {
	return len(p.GoFiles) > 0 && strings.HasPrefix(p.GoFiles[0], dir+string(filepath.Separator))
}

// constrainedDirectories returns the packages with files that only some builds have, as patterns.
func constrainedDirectories(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != dir {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || name == "testdata" || strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(src, []byte("\n//go:build ")) || bytes.HasPrefix(src, []byte("//go:build ")) || constrainedName.MatchString(name) {
			rel, err := filepath.Rel(dir, filepath.Dir(path))
			if err != nil {
				return err
			}
			if p := "./" + filepath.ToSlash(rel); !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
		return nil
	})
	return out, err
}

var constrainedName = regexp.MustCompile(`_(windows|darwin|linux|amd64|arm64)(_test)?\.go$`)

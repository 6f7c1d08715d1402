package simcluster

import (
	"go/ast"
	"go/format"
	"go/parser"
	gotoken "go/token"
	"path/filepath"
	"strings"
	"testing"

	"penstock/core/migrate"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/handoff"
	routershell "penstock/internal/serve/router"
	workershell "penstock/internal/serve/worker"
)

// constants returns the constants of a package, by name, as they are written.
func constants(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	all := map[string]string{}
	set := gotoken.NewFileSet()
	for _, file := range files {
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != gotoken.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				for i, value := range v.Values {
					var text strings.Builder
					if err := format.Node(&text, set, value); err != nil {
						t.Fatal(err)
					}
					all[v.Names[i].Name] = text.String()
				}
			}
		}
	}
	return all
}

// TestTimesOfTheShells: what shells do in time they do here too.
func TestTimesOfTheShells(t *testing.T) {
	here := constants(t, ".")
	for _, c := range []struct{ dir, name, ours string }{
		{"../serve/router", "upkeep", "upkeepEvery"},
		{"../serve/router", "settle", "settle"},
		{"../serve/router", "reportValidFor", "fresh"},
		{"../serve/router", "pingTimeout", "pingTimeout"},
		{"../serve/router", "maxPings", "maxPings"},
	} {
		want := constants(t, c.dir)[c.name]
		if got := here[c.ours]; got == "" || got != want {
			t.Errorf("%s is %q, and %s of %s is %q", c.ours, got, c.name, c.dir, want)
		}
	}
	var r routershell.Config
	r.EnsureDefaults()
	if unregisteredGrace != r.Grace || reservationTTL != r.ReservationTTL {
		t.Errorf("entries stay %v and reservations %v, in a router %v and %v", unregisteredGrace, reservationTTL, r.Grace, r.ReservationTTL)
	}
	if withDefaults().PrefillConcurrency != handoff.DefaultConcurrency {
		t.Errorf("a prefill worker does not do %d jobs at once", handoff.DefaultConcurrency)
	}
	var w workershell.Config
	w.EnsureDefaults()
	if loadEvery != w.LoadInterval || loadRefresh != w.LoadRefresh {
		t.Errorf("loads are looked at every %v and reported every %v, in a worker %v and %v", loadEvery, loadRefresh, w.LoadInterval, w.LoadRefresh)
	}
	var f frontend.Config
	f.EnsureDefaults()
	var c Config
	c.EnsureDefaults()
	if want := (migrate.Config{MaxFailures: *f.MigrationLimit, MaxWait: *f.MigrationWait}); c.Migration != want || c.StallTimeout != f.StallTimeout {
		t.Errorf("%+v and %v, in a frontend %+v and %v", c.Migration, c.StallTimeout, want, f.StallTimeout)
	}
}

// withDefaults returns a configuration of defaults.
func withDefaults() *Config {
	var c Config
	c.EnsureDefaults()
	return &c
}

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/format"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// place is where an object is declared. It names the same object in every variant of a package and in every configuration.
type place struct {
	file string
	off  int
}

// A rename is the new name of an object.
type rename struct {
	old, name, where string
	override         bool
}

// renamer holds the loaded trees and what is to be renamed.
type renamer struct {
	dir      string
	table    *table
	packages []*packages.Package // of the module, every variant of every configuration
	outside  []*types.Package    // imported from elsewhere
	newNames map[place]rename
	problems []string
}

func newRenamer(dir string, t *table, loads [][]*packages.Package) *renamer {
	r := &renamer{dir: dir, table: t, newNames: map[place]rename{}}
	seen := map[*packages.Package]bool{}
	out := map[string]bool{}
	for i, pkgs := range loads {
		packages.Visit(pkgs, nil, func(p *packages.Package) {
			switch {
			case seen[p] || p.Types == nil:
			case inside(dir, p) && !strings.HasSuffix(p.PkgPath, ".test"):
				r.packages = append(r.packages, p)
			case i == 0 && !out[p.PkgPath] && !strings.Contains(p.PkgPath, "internal"):
				out[p.PkgPath] = true
				r.outside = append(r.outside, p.Types)
			}
			seen[p] = true
		})
	}
	return r
}

func (r *renamer) problem(where, text string, args ...any) {
	r.problems = append(r.problems, where+": "+fmt.Sprintf(text, args...))
}

func (r *renamer) printProblems(w io.Writer) {
	slices.Sort(r.problems)
	for _, p := range slices.Compact(r.problems) {
		fmt.Fprintln(w, p)
	}
}

func placeOf(p *packages.Package, pos token.Pos) place {
	if !pos.IsValid() {
		return place{}
	}
	at := p.Fset.PositionFor(pos, false)
	return place{at.Filename, at.Offset}
}

// directory is the package's directory inside the module, with _test for the external test package.
func (r *renamer) directory(p *packages.Package) string {
	dir, err := filepath.Rel(r.dir, filepath.Dir(p.GoFiles[0]))
	if err != nil {
		return ""
	}
	if strings.HasSuffix(p.Name, "_test") {
		dir += "_test"
	}
	return filepath.ToSlash(dir)
}

// resolveTable finds the objects which the table names.
func (r *renamer) resolveTable() {
	found := make([]bool, len(r.table.entries))
	byDir := map[string][]int{}
	for i, e := range r.table.entries {
		byDir[e.pkg] = append(byDir[e.pkg], i)
	}
	for _, p := range r.packages {
		for _, i := range byDir[r.directory(p)] {
			e := r.table.entries[i]
			obj := lookUp(p.Types, e.path)
			if obj == nil {
				continue
			}
			found[i] = true
			r.rename(p, obj, e.newName, e.where, e.override)
		}
	}
	for i, ok := range found {
		if e := r.table.entries[i]; !ok {
			r.problem(e.where, "there is no %s in %s", strings.Join(e.path, "."), e.pkg)
		}
	}
}

// rename notes an object's new name.
func (r *renamer) rename(p *packages.Package, obj types.Object, name, where string, override bool) bool {
	at := placeOf(p, obj.Pos())
	if was, ok := r.newNames[at]; ok {
		if was.name != name {
			r.problem(where, "%s becomes %s, and %s at %s", obj.Name(), name, was.name, was.where)
		}
		return false
	}
	if obj.Name() == name {
		return false
	}
	r.newNames[at] = rename{obj.Name(), name, where, override}
	return true
}

// lookUp finds Name, Type.Member or Type.field.field in a package.
func lookUp(p *types.Package, path []string) types.Object {
	obj := p.Scope().Lookup(path[0])
	for _, name := range path[1:] {
		if obj == nil {
			return nil
		}
		obj = member(obj.Type(), name)
	}
	return obj
}

// member finds a field or a method that the type itself declares.
func member(t types.Type, name string) types.Object {
	if named, ok := types.Unalias(t).(*types.Named); ok {
		named = named.Origin()
		for m := range named.Methods() {
			if m.Name() == name {
				return m
			}
		}
		t = named.Underlying()
	}
	if ptr, ok := t.(*types.Pointer); ok {
		return member(ptr.Elem(), name)
	}
	switch t := t.(type) {
	case *types.Struct:
		for f := range t.Fields() {
			if f.Name() == name {
				return f
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			if m.Name() == name {
				return m
			}
		}
	case *types.Slice:
		return member(t.Elem(), name)
	case *types.Array:
		return member(t.Elem(), name)
	case *types.Map:
		return member(t.Elem(), name)
	}
	return nil
}

// An iface is an interface of the tree, or of a package that it imports.
type iface struct {
	p    *packages.Package
	name string
	t    *types.Interface
}

// linkInterfaces gives a method of an interface and the methods that implement it the same new name, until nothing changes.
func (r *renamer) linkInterfaces() {
	type method struct {
		p   *packages.Package
		obj types.Object
	}
	links := map[place][]method{} // every method's partners
	external := map[place]string{}
	for _, group := range r.byUniverse() {
		var ifaces []iface
		var concrete []iface
		for _, p := range group {
			for id, obj := range p.TypesInfo.Defs {
				tn, ok := obj.(*types.TypeName)
				if !ok || tn.IsAlias() {
					continue
				}
				switch t := tn.Type().(type) {
				case *types.Named:
					if it, ok := t.Underlying().(*types.Interface); ok {
						ifaces = append(ifaces, iface{p, id.Name, it})
						concrete = append(concrete, iface{p: p, name: id.Name})
					} else {
						concrete = append(concrete, iface{p: p, name: id.Name})
					}
					concrete[len(concrete)-1].t = nil
				}
				_ = tn
			}
			for expr, tv := range p.TypesInfo.Types {
				if _, ok := expr.(*ast.InterfaceType); ok {
					if it, ok := tv.Type.(*types.Interface); ok {
						ifaces = append(ifaces, iface{p, "", it})
					}
				}
			}
		}
		var named []*types.Named
		var owners []*packages.Package
		for _, p := range group {
			for _, obj := range p.TypesInfo.Defs {
				if tn, ok := obj.(*types.TypeName); ok && !tn.IsAlias() {
					if t, ok := tn.Type().(*types.Named); ok {
						named, owners = append(named, t), append(owners, p)
					}
				}
			}
		}
		sets := make([]*types.MethodSet, len(named))
		for i, t := range named {
			if types.IsInterface(t) {
				sets[i] = types.NewMethodSet(t)
			} else {
				sets[i] = types.NewMethodSet(types.NewPointer(t))
			}
		}
		link := func(it *types.Interface, ip *packages.Package, outside string) {
			if it.NumMethods() == 0 {
				return
			}
			for i, t := range named {
				if sets[i].Len() < it.NumMethods() {
					continue
				}
				var pairs [][2]types.Object
				ok := true
				for m := range it.Methods() {
					sel := sets[i].Lookup(m.Pkg(), m.Name())
					if sel == nil {
						ok = false
						break
					}
					pairs = append(pairs, [2]types.Object{m, sel.Obj()})
				}
				if !ok {
					continue
				}
				var whole types.Type = types.NewPointer(t)
				if types.IsInterface(t) {
					whole = t
				}
				if t.TypeParams().Len() == 0 && !types.Implements(whole, it) {
					continue
				}
				for _, pair := range pairs {
					b := placeOf(owners[i], pair[1].Pos())
					if outside != "" {
						external[b] = outside
						continue
					}
					a := placeOf(ip, pair[0].Pos())
					if a == b {
						continue
					}
					links[a] = append(links[a], method{owners[i], pair[1]})
					links[b] = append(links[b], method{ip, pair[0]})
				}
			}
		}
		for _, it := range ifaces {
			link(it.t, it.p, "")
		}
		for _, out := range r.outsideOf(group) {
			for _, name := range out.Scope().Names() {
				tn, ok := out.Scope().Lookup(name).(*types.TypeName)
				if !ok || !tn.Exported() {
					continue
				}
				if it, ok := tn.Type().Underlying().(*types.Interface); ok {
					link(it, nil, out.Path()+"."+name)
				}
			}
		}
	}
	work := slices.Collect(maps.Keys(r.newNames))
	for len(work) > 0 {
		at := work[0]
		work = work[1:]
		n := r.newNames[at]
		if ext, ok := external[at]; ok && !n.override {
			r.problem(n.where, "%s implements %s", n.old, ext)
			continue
		}
		for _, m := range links[at] {
			if !r.own(placeOf(m.p, m.obj.Pos())) {
				if !n.override {
					r.problem(n.where, "%s belongs to a method of another module", n.old)
				}
				continue
			}
			if r.rename(m.p, m.obj, n.name, n.where, n.override) {
				work = append(work, placeOf(m.p, m.obj.Pos()))
			}
		}
	}
}

func (r *renamer) own(at place) bool {
	return strings.HasPrefix(at.file, r.dir+string(filepath.Separator))
}

// byUniverse groups the packages whose types can be compared: they were loaded together.
func (r *renamer) byUniverse() [][]*packages.Package {
	groups := map[*token.FileSet][]*packages.Package{}
	var order []*token.FileSet
	for _, p := range r.packages {
		if groups[p.Fset] == nil {
			order = append(order, p.Fset)
		}
		groups[p.Fset] = append(groups[p.Fset], p)
	}
	var out [][]*packages.Package
	for _, f := range order {
		out = append(out, groups[f])
	}
	return out
}

// outsideOf returns the packages of other modules which a group imports directly. Types of different loads do not compare.
func (r *renamer) outsideOf(group []*packages.Package) []*types.Package {
	seen := map[*types.Package]bool{}
	var out []*types.Package
	for _, p := range group {
		for _, imported := range p.Imports {
			if imported.Types != nil && !seen[imported.Types] && !inside(r.dir, imported) {
				seen[imported.Types] = true
				out = append(out, imported.Types)
			}
		}
	}
	return out
}

// renameEmbeddedFields gives an embedded field its type's new name.
func (r *renamer) renameEmbeddedFields() {
	for _, p := range r.packages {
		for id, obj := range p.TypesInfo.Defs {
			v, ok := obj.(*types.Var)
			if !ok || !v.Embedded() {
				continue
			}
			tn := p.TypesInfo.Uses[id]
			if tn == nil {
				continue
			}
			if n, ok := r.newNames[placeOf(p, tn.Pos())]; ok {
				r.rename(p, v, n.name, n.where, n.override)
			} else if n, ok := r.newNames[placeOf(p, v.Pos())]; ok {
				r.problem(n.where, "%s is embedded: rename its type", n.old)
			}
		}
	}
}

// checkConflicts looks for new names that are taken where they would be declared or used.
func (r *renamer) checkConflicts() {
	for _, p := range r.packages {
		r.checkPackageScope(p)
		r.checkMembers(p)
		r.checkUses(p)
	}
}

// nameAfter is an object's name when all is renamed.
func (r *renamer) nameAfter(p *packages.Package, obj types.Object) string {
	if n, ok := r.newNames[placeOf(p, obj.Pos())]; ok {
		return n.name
	}
	return obj.Name()
}

func (r *renamer) checkPackageScope(p *packages.Package) {
	scope := p.Types.Scope()
	taken := map[string]types.Object{}
	for _, name := range scope.Names() {
		obj := scope.Lookup(name)
		after := r.nameAfter(p, obj)
		if before, ok := taken[after]; ok {
			n := cmp.Or(r.newNames[placeOf(p, obj.Pos())], r.newNames[placeOf(p, before.Pos())])
			r.problem(n.where, "%s and %s of %s would both be %s", before.Name(), name, p.PkgPath, after)
		}
		taken[after] = obj
	}
	for _, f := range p.Syntax {
		for _, spec := range f.Imports {
			obj := p.TypesInfo.PkgNameOf(spec)
			if obj == nil || obj.Name() == "_" {
				continue
			}
			if other, ok := taken[obj.Name()]; ok && other.Name() != obj.Name() {
				n := r.newNames[placeOf(p, other.Pos())]
				r.problem(n.where, "%s: %s is the name of an import in %s", n.old, n.name, filepath.Base(p.Fset.Position(f.Pos()).Filename))
			}
		}
	}
}

func (r *renamer) checkMembers(p *packages.Package) {
	check := func(t *types.Named, fields *types.Struct, label string) {
		taken := map[string]string{}
		add := func(obj types.Object) {
			after := r.nameAfter(p, obj)
			if before, ok := taken[after]; ok {
				n := r.newNames[placeOf(p, obj.Pos())]
				r.problem(cmp.Or(n.where, "a table"), "%s and %s of %s.%s would both be %s", before, obj.Name(), p.PkgPath, label, after)
			}
			taken[after] = obj.Name()
		}
		if t != nil {
			for m := range t.Methods() {
				add(m)
			}
			if it, ok := t.Underlying().(*types.Interface); ok {
				for m := range it.Methods() {
					add(m)
				}
			}
		}
		if fields == nil {
			return
		}
		for f := range fields.Fields() {
			if f.Name() != "_" {
				add(f)
			}
		}
		// What is promoted from embedded fields is hidden by a new name at the top.
		for f := range fields.Fields() {
			if !f.Embedded() {
				continue
			}
			ft := f.Type()
			if ptr, ok := ft.(*types.Pointer); ok {
				ft = ptr.Elem()
			}
			for name, obj := range promoted(ft) {
				after := name
				if pos := placeOf(p, obj.Pos()); pos.file != "" {
					if n, ok := r.newNames[pos]; ok {
						after = n.name
					}
				}
				before, ok := taken[after]
				if !ok {
					continue
				}
				top := lookUpAny(t, fields, before)
				if top == nil || top.Name() == name {
					continue // it was hidden before
				}
				n := cmp.Or(r.newNames[placeOf(p, top.Pos())], r.newNames[placeOf(p, obj.Pos())])
				r.problem(cmp.Or(n.where, "a table"), "%s of %s.%s would hide %s of its embedded %s (as %s)", before, p.PkgPath, label, name, f.Name(), after)
			}
		}
	}
	for _, obj := range p.TypesInfo.Defs {
		tn, ok := obj.(*types.TypeName)
		if !ok || tn.IsAlias() {
			continue
		}
		if t, ok := tn.Type().(*types.Named); ok {
			st, _ := t.Underlying().(*types.Struct)
			check(t, st, tn.Name())
		}
	}
	for expr, tv := range p.TypesInfo.Types {
		if _, ok := expr.(*ast.StructType); ok {
			if st, ok := tv.Type.(*types.Struct); ok {
				check(nil, st, "struct at "+p.Fset.Position(expr.Pos()).String())
			}
		}
	}
}

func lookUpAny(t *types.Named, st *types.Struct, name string) types.Object {
	if t != nil {
		return member(t, name)
	}
	return member(st, name)
}

// promoted returns the fields and methods that an embedded type contributes, to any depth.
func promoted(t types.Type) map[string]types.Object {
	out := map[string]types.Object{}
	seen := map[types.Type]bool{}
	var walk func(types.Type)
	walk = func(t types.Type) {
		if ptr, ok := t.(*types.Pointer); ok {
			t = ptr.Elem()
		}
		if seen[t] {
			return
		}
		seen[t] = true
		if named, ok := types.Unalias(t).(*types.Named); ok {
			for m := range named.Methods() {
				if _, ok := out[m.Name()]; !ok {
					out[m.Name()] = m
				}
			}
		}
		switch u := t.Underlying().(type) {
		case *types.Struct:
			for f := range u.Fields() {
				if _, ok := out[f.Name()]; !ok {
					out[f.Name()] = f
				}
				if f.Embedded() {
					walk(f.Type())
				}
			}
		case *types.Interface:
			for m := range u.Methods() {
				if _, ok := out[m.Name()]; !ok {
					out[m.Name()] = m
				}
			}
		}
	}
	walk(t)
	return out
}

// checkUses looks for a local declaration that would capture a use of a renamed object, and for a new name at package level that
// would capture a use of a predeclared one.
func (r *renamer) checkUses(p *packages.Package) {
	captured := map[string]rename{} // new names at package level that are predeclared
	scope := p.Types.Scope()
	for _, name := range scope.Names() {
		if n, ok := r.newNames[placeOf(p, scope.Lookup(name).Pos())]; ok && types.Universe.Lookup(n.name) != nil {
			captured[n.name] = n
		}
	}
	for id, obj := range p.TypesInfo.Uses {
		if obj.Parent() == types.Universe {
			if n, ok := captured[id.Name]; ok {
				r.problem(n.where, "%s: %s is predeclared and used in the package", n.old, n.name)
			}
			continue
		}
		if obj.Pkg() == nil || obj.Parent() != obj.Pkg().Scope() || obj.Pkg() != p.Types {
			continue // qualified, a member or local
		}
		n, ok := r.newNames[placeOf(p, obj.Pos())]
		if !ok {
			continue
		}
		inner := scope.Innermost(id.Pos())
		if inner == nil {
			continue
		}
		if _, other := inner.LookupParent(n.name, id.Pos()); other != nil && other.Parent() != scope && other.Parent() != types.Universe {
			r.problem(n.where, "%s: %s is a local name at %s", n.old, n.name, p.Fset.Position(id.Pos()))
		}
	}
}

// An edit replaces bytes of a file.
type edit struct {
	from, to int
	text     string
}

// apply writes the new names, then moves the files.
func (r *renamer) apply() error {
	edits := map[string]map[int]edit{}
	add := func(file string, from, to int, text string) {
		if edits[file] == nil {
			edits[file] = map[int]edit{}
		}
		edits[file][from] = edit{from, to, text}
	}
	moved := map[string]string{} // import path of a package to its new one
	module := r.modulePath()
	for _, m := range r.table.packages {
		moved[module+"/"+m.from] = module + "/" + m.to
	}
	newPath := func(p string) (string, bool) {
		for from := p; ; from = path.Dir(from) { // the longest that was moved
			if to, ok := moved[from]; ok {
				return to + strings.TrimPrefix(p, from), true
			}
			if !strings.Contains(from, "/") {
				return p, false
			}
		}
	}
	for _, p := range r.packages {
		rename := func(id *ast.Ident, obj types.Object) {
			if obj == nil {
				return
			}
			at := placeOf(p, id.Pos())
			if pn, ok := obj.(*types.PkgName); ok {
				if to, ok := moved[pn.Imported().Path()]; ok && pn.Name() == path.Base(pn.Imported().Path()) && id.Name == pn.Name() {
					if p.TypesInfo.Defs[id] == nil { // not an alias in the import
						add(at.file, at.off, at.off+len(id.Name), path.Base(to))
					}
				}
				return
			}
			if n, ok := r.newNames[placeOf(p, obj.Pos())]; ok && id.Name == n.old {
				add(at.file, at.off, at.off+len(id.Name), n.name)
			}
		}
		for id, obj := range p.TypesInfo.Defs {
			rename(id, obj)
		}
		for id, obj := range p.TypesInfo.Uses {
			rename(id, obj)
		}
		for _, f := range p.Syntax {
			for _, spec := range f.Imports {
				was, _ := strconv.Unquote(spec.Path.Value)
				if to, ok := newPath(was); ok {
					at := placeOf(p, spec.Path.Pos())
					add(at.file, at.off, at.off+len(spec.Path.Value), strconv.Quote(to))
				}
			}
			ownPath := strings.TrimSuffix(p.PkgPath, "_test")
			if to, ok := moved[ownPath]; ok && (f.Name.Name == path.Base(ownPath) || f.Name.Name == path.Base(ownPath)+"_test") {
				at := placeOf(p, f.Name.Pos())
				add(at.file, at.off, at.off+len(f.Name.Name), path.Base(to)+strings.TrimPrefix(f.Name.Name, path.Base(ownPath)))
			}
			r.renameInComments(p, f, add)
		}
	}
	for file, byOffset := range edits {
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		at := 0
		for _, off := range slices.Sorted(maps.Keys(byOffset)) {
			e := byOffset[off]
			out.Write(src[at:e.from])
			out.WriteString(e.text)
			at = e.to
		}
		out.Write(src[at:])
		text, err := format.Source(out.Bytes())
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("%d objects in %d files\n", len(r.newNames), len(edits))
	return r.moveFiles()
}

// renameInComments replaces the name at the start of a declaration's comment, links to package-level names of the same package, and
// old names in mixed caps, which are no words of prose.
func (r *renamer) renameInComments(p *packages.Package, f *ast.File, add func(string, int, int, string)) {
	names := map[string]string{}
	scope := p.Types.Scope()
	for _, name := range scope.Names() {
		obj := scope.Lookup(name)
		if n, ok := r.newNames[placeOf(p, obj.Pos())]; ok {
			names[name] = n.name
		}
	}
	docs := map[*ast.CommentGroup]*ast.Ident{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			docs[d.Doc] = d.Name
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					docs[d.Doc] = s.Name
					docs[s.Doc] = s.Name
				case *ast.ValueSpec:
					docs[s.Doc] = s.Names[0]
					if !d.Lparen.IsValid() {
						docs[d.Doc] = s.Names[0]
					}
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && field.Doc != nil && len(field.Names) == 1 {
			docs[field.Doc] = field.Names[0]
		}
		return true
	})
	delete(docs, nil)
	for _, group := range f.Comments {
		if id := docs[group]; id != nil {
			if n, ok := r.newNames[placeOf(p, id.Pos())]; ok {
				first := group.List[0]
				for _, before := range []string{"// ", "// A ", "// An ", "// The "} {
					rest, ok := strings.CutPrefix(first.Text, before+n.old)
					if ok && (rest == "" || !isWord(rest[0])) {
						at := placeOf(p, first.Pos())
						off := at.off + len(before)
						add(at.file, off, off+len(n.old), n.name)
						break
					}
				}
			}
		}
		for _, c := range group.List {
			for _, hit := range words.FindAllStringIndex(c.Text, -1) {
				word := c.Text[hit[0]:hit[1]]
				name, ok := names[word]
				linked := hit[0] > 0 && c.Text[hit[0]-1] == '[' && hit[1] < len(c.Text) && (c.Text[hit[1]] == ']' || c.Text[hit[1]] == '.')
				if !ok || !linked && !mixedCaps.MatchString(word) || hit[0] > 0 && c.Text[hit[0]-1] == '.' {
					continue
				}
				at := placeOf(p, c.Pos())
				add(at.file, at.off+hit[0], at.off+hit[1], name)
			}
		}
	}
}

var (
	words     = regexp.MustCompile(`[A-Za-z_][A-Za-z_0-9]*`)
	mixedCaps = regexp.MustCompile(`[a-z][A-Z]`)
)

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

func (r *renamer) modulePath() string {
	for _, p := range r.packages {
		if p.Module != nil && p.Module.Dir == r.dir {
			return p.Module.Path
		}
	}
	return ""
}

// moveFiles moves the files, then the packages, those below others first.
func (r *renamer) moveFiles() error {
	for _, m := range r.table.files {
		if err := r.moveFile(m.from, m.to); err != nil {
			return fmt.Errorf("%s: %w", m.where, err)
		}
	}
	moves := slices.SortedFunc(slices.Values(r.table.packages), func(a, b move) int { return len(b.from) - len(a.from) })
	for _, m := range moves {
		entries, err := os.ReadDir(filepath.Join(r.dir, m.from))
		if err != nil {
			return fmt.Errorf("%s: %w", m.where, err)
		}
		for _, e := range entries {
			if err := r.moveFile(m.from+"/"+e.Name(), m.to+"/"+e.Name()); err != nil {
				return fmt.Errorf("%s: %w", m.where, err)
			}
		}
		if err := os.Remove(filepath.Join(r.dir, m.from)); err != nil {
			return fmt.Errorf("%s: %w", m.where, err)
		}
	}
	return nil
}

// moveFile moves a file or a directory to a place where nothing is.
func (r *renamer) moveFile(from, to string) error {
	target := filepath.Join(r.dir, to)
	if _, err := os.Stat(target); err == nil {
		return fmt.Errorf("%s exists", to)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(r.dir, from), target)
}

// Package fixturetest has what tests of many packages need: certificates, and the inputs that fuzzing found to
// reach far into a package, which the package keeps in one archive, testdata/corpus.txtar, so that testdata/fuzz
// holds regressions alone.
package fixturetest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Archive is the file of a package's corpus: a line `-- TARGET/NAME --`, then the input as `go test` writes it to
// testdata/fuzz.
const Archive = "testdata/corpus.txtar"

// AddCorpus adds the inputs of the target f. The target fails if the package has none for it.
func AddCorpus(f *testing.F) {
	f.Helper()
	text, err := os.ReadFile(Archive)
	if err != nil {
		f.Fatal(err)
	}
	inputs, err := readInputs(string(text), f.Name())
	if err != nil {
		f.Fatal(err)
	}
	if len(inputs) == 0 {
		f.Fatalf("%s has no input of %s", Archive, f.Name())
	}
	for _, values := range inputs {
		f.Add(values...)
	}
}

// readInputs returns the values of each input of a target, in the archive's order.
func readInputs(archive, target string) ([][]any, error) {
	var out [][]any
	name := ""
	for i, line := range strings.Split(archive, "\n") {
		if rest, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(rest, " --") {
			name, _, _ = strings.Cut(rest, "/")
			if name == target {
				out = append(out, nil)
			}
			continue
		}
		if name != target || line == "" || line == "go test fuzz v1" {
			continue
		}
		v, err := parseValue(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		out[len(out)-1] = append(out[len(out)-1], v)
	}
	return out, nil
}

// parseValue reads TYPE(LITERAL), the form in which Go writes one value of an input.
func parseValue(line string) (any, error) {
	expr, err := parser.ParseExpr(line)
	if err != nil {
		return nil, err
	}
	call, ok := expr.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return nil, fmt.Errorf("%q is not a value", line)
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return nil, fmt.Errorf("%q is not a literal", line)
	}
	text := literal.Value
	if _, slice := call.Fun.(*ast.ArrayType); slice {
		s, err := strconv.Unquote(text)
		return []byte(s), err
	}
	kind, ok := call.Fun.(*ast.Ident)
	if !ok {
		return nil, fmt.Errorf("%q has no type", line)
	}
	switch kind.Name {
	case "string":
		return strconv.Unquote(text)
	case "byte":
		if literal.Kind == token.CHAR {
			r, _, _, err := strconv.UnquoteChar(text[1:len(text)-1], '\'')
			return byte(r), err
		}
		n, err := strconv.ParseUint(text, 0, 8)
		return byte(n), err
	case "uint16":
		n, err := strconv.ParseUint(text, 0, 16)
		return uint16(n), err
	case "uint64":
		return strconv.ParseUint(text, 0, 64)
	}
	return nil, fmt.Errorf("values of type %s are not read: add the type here", kind.Name)
}

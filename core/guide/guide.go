// Package guide holds a text to a JSON Schema while it is being written: after
// every byte it knows which bytes may come next and whether the text is
// complete, and over a vocabulary which tokens may.
//
// [Compile] turns a schema into a [Grammar], a program that a [State] follows
// byte by byte. [NewVocab] sorts the tokens of a model into a trie, and [Masks]
// walks trie and program together: the cost of a mask is that of the part of the
// trie that the schema allows.
//
// # What is written
//
// The text is JSON without white space. Properties come in the order in which
// the schema lists them, optional ones may be left out, and those that are only
// allowed by additionalProperties come last. Names of properties, enum and const
// are spelled in one way, except that a character beyond ASCII may be escaped,
// since not every vocabulary has its bytes; other strings may use all of JSON's
// escapes. Every text accepted is valid for the schema, and every beginning
// accepted can be completed: there are no dead ends.
//
// # Narrower than the schema
//
// The texts are fewer than those the schema allows in these ways: order, white
// space and spelling as above; properties without additionalProperties, and
// prefixItems without items, allow no more than they list; a schema without type
// whose keywords belong to one type is of that type; an integer is within 64
// bits, a number has at most 18 digits before and 25 after the point, or one
// digit before the point and an exponent between -307 and 307, where it has no
// bounds; a date is never the 29th of February; and values nest at most MaxDepth
// deep. Names that additionalProperties allows may occur twice.
//
// # What is refused
//
// A schema comes from a client, so what cannot be enforced is refused by name and
// never ignored, and compiling is bounded in time and memory whatever it is
// given.
package guide

import (
	"penstock/core/fault"
)

// The bounds of a schema and of what follows it.
const (
	// MaxBytes is the longest schema compiled.
	MaxBytes = 256 << 10
	// MaxDepth is how deep the values of a text nest.
	MaxDepth = 128

	maxSchemaDepth  = 128     // how deep the schema's own JSON nests
	maxCode         = 1 << 16 // instructions
	maxAlternatives = 256     // of one anyOf, oneOf or type; optional properties in a row
	// maxThreads is how many readings of a text are followed at once. A schema
	// whose alternatives are more ambiguous than that is followed in the first
	// ones: fewer texts, all of them valid.
	maxThreads = 1024
)

// Grammar is a compiled schema. It does not change and is safe for concurrent
// use.
type Grammar struct {
	code    []instr
	targets []int32 // of splits
	bytes   []byte  // of literals
	texts   []text
	numbers []number
	start   int32
}

// op says what an instruction does. The first four consume bytes or end.
type op uint8

const (
	opEnd     op = iota // the text is complete
	opLiteral           // the bytes [x, y)
	opText              // texts[x], from behind the opening quote to the closing one
	opNumber            // numbers[x]

	opSplit  // goes on at each of targets[x:y]
	opRoom   // dies unless x more values may nest
	opCall   // the rule at x, and then next
	opReturn // to where the rule was called
	opCount  // one more item, counted up to x
	opMore   // dies unless there are fewer than x items
	opEnough // dies unless there are at least x items
)

// instr is one instruction; next is where it goes on.
type instr struct {
	op   op
	next int32
	x, y int32
}

// thread is one reading of the text so far: where it is, what it returns to, and
// where it is within the instruction.
type thread struct {
	pc, frame int32
	a         uint64
	b, c      uint32
}

// frame is a value that has begun: what comes after it, and how many items it
// has if it is an array. Frames form a tree by their parents, which stand before
// them.
type frame struct {
	parent, ret  int32
	count, depth int32
}

// Compile returns the grammar of a JSON Schema: of the keywords of draft 2020-12
// that constrain (and definitions of earlier ones), those about types,
// properties, required, additionalProperties, items, prefixItems, minItems,
// maxItems, enum, const, anyOf, allOf of one, oneOf whose alternatives are
// provably disjoint, $ref within the schema, minLength, maxLength, pattern,
// format (date, time, date-time, duration, uuid, email, hostname, uri, ipv4, ipv6,
// int32, int64, float, double), propertyNames that any name matches,
// minimum, maximum and their exclusive forms. Annotations are ignored. The error
// is a *fault.Error of code Invalid that names the place, as a JSON pointer, and
// the keyword. It keeps nothing of schema.
func Compile(schema []byte) (*Grammar, error) {
	if len(schema) > MaxBytes {
		return nil, fault.New(fault.Invalid, "the JSON schema has %d bytes; at most %d are taken", len(schema), MaxBytes)
	}
	root, err := parse(schema)
	if err != nil {
		return nil, err
	}
	c := compiler{rules: map[*value]int{}, patterns: map[string]*dfa{}, root: root, any: -1}
	return c.compile()
}

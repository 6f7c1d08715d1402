// Package grammar constrains generated text to a JSON Schema (structured output): after every byte it knows
// which bytes may come next and whether the text is complete, and over a vocabulary which tokens may come
// next.
//
// [Compile] compiles a schema to a [Grammar], a program which a [State] executes byte by byte. [NewVocab]
// sorts the tokens of a model into a trie, and [MaskCache] walks trie and program together: a mask costs as
// much as the part of the trie which the schema allows.
//
// # What is written
//
// The text is JSON without white space. Properties come in the order of the schema; optional ones may be
// left out, and properties which only additionalProperties allows come last. Property names, enum and const
// values have one spelling, except that a character beyond ASCII may be escaped, because some vocabularies
// lack its bytes. Other strings may use all escapes of JSON. Every accepted text is valid for the schema,
// and every accepted prefix can be completed: there are no dead ends.
//
// # Narrower than the schema
//
// The grammar accepts fewer texts than the schema allows: order, white space and spelling as above;
// properties without additionalProperties, and prefixItems without items, allow only what they list; a
// schema without type whose keywords belong to one type is of that type; an integer is within 64 bits; a
// number has at most 18 digits before and 25 after the point, or, where it has no bounds, one digit before
// the point and an exponent between -307 and 307; a date is never the 29th of February; and values nest at
// most MaxDepth deep. Names which additionalProperties allows may occur twice.
//
// # What is refused
//
// A schema comes from a client, so a keyword which cannot be enforced is refused by name and never ignored.
// Compilation is bounded in time and memory for any input.
package grammar

import (
	"penstock/core/fault"
)

// The bounds of a schema and of its program.
const (
	// MaxBytes is the longest schema compiled.
	MaxBytes = 256 << 10
	// MaxDepth is the largest nesting depth of the values of a text.
	MaxDepth = 128

	maxSchemaDepth  = 128     // nesting depth of the schema's own JSON
	maxCode         = 1 << 16 // instructions
	maxAlternatives = 256     // of one anyOf, oneOf or type; consecutive optional properties
	// maxThreads bounds the readings of a text which are followed at once. Of a schema with more ambiguous
	// alternatives only the first ones are followed: fewer texts, all of them valid.
	maxThreads = 1024
)

// Grammar is a compiled schema. It is immutable and safe for concurrent use.
type Grammar struct {
	code    []instr
	targets []int32 // of splits
	bytes   []byte  // of literals
	strings []stringRule
	numbers []numberRule
	start   int32
}

// opcode is the kind of an instruction. The first four consume bytes or end.
type opcode uint8

const (
	opEnd     opcode = iota // the text is complete
	opLiteral               // the bytes [x, y)
	opText                  // strings[x], from after the opening quote to the closing one
	opNumber                // numbers[x]

	opSplit  // continues at each of targets[x:y]
	opRoom   // fails unless x more values may nest
	opCall   // the rule at x, then next
	opReturn // to the caller of the rule
	opCount  // one more item, counted up to x
	opMore   // fails unless there are fewer than x items
	opEnough // fails unless there are at least x items
)

// instr is one instruction; next is its successor.
type instr struct {
	op   opcode
	next int32
	x, y int32
}

// thread is one reading of the text so far: its instruction, its frame, and its position within the
// instruction.
type thread struct {
	pc, frame int32
	a         uint64
	b, c      uint32
}

// frame is an open value: the instruction after it, and its number of items if it is an array. Frames form
// a tree by their parents, which come before them.
type frame struct {
	parent, ret  int32
	count, depth int32
}

// Compile returns the grammar of a JSON Schema. Of the keywords of draft 2020-12 which constrain (and
// definitions of earlier drafts) it supports types, properties, required, additionalProperties, items,
// prefixItems, minItems, maxItems, enum, const, anyOf, allOf of one, oneOf whose alternatives are provably
// disjoint, $ref within the schema, minLength, maxLength, pattern, format (date, time, date-time, duration,
// uuid, email, hostname, uri, ipv4, ipv6, int32, int64, float, double), propertyNames which any name
// matches, minimum, maximum and their exclusive forms. It ignores annotations. The error is a *fault.Error
// of code Invalid which names the place, as a JSON pointer, and the keyword. Compile keeps nothing of
// schema.
func Compile(schema []byte) (*Grammar, error) {
	if len(schema) > MaxBytes {
		return nil, fault.New(fault.Invalid, "the JSON schema has %d bytes; at most %d are taken", len(schema), MaxBytes)
	}
	root, err := parseSchema(schema)
	if err != nil {
		return nil, err
	}
	c := compiler{rules: map[*jsonValue]int{}, patterns: map[string]*dfa{}, root: root, anyRule: -1}
	return c.compileSchema()
}

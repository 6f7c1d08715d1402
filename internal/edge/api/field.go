package api

import (
	"slices"
	"strconv"
	"strings"

	"penstock/internal/strictjson"
)

// Treatment is what a dialect does with a request field.
type Treatment uint8

// The treatments.
const (
	// Mapped fields change the answer as their definition says.
	Mapped Treatment = iota
	// Accepted fields are read, validated and ignored: ignoring them cannot change the answer.
	Accepted
	// Refused fields are answered with 400 and their name, except for values which request the only supported
	// behavior.
	Refused
)

// String returns the treatment's name in documents.
func (t Treatment) String() string {
	return [...]string{"mapped", "accepted", "refused"}[t]
}

// Field is a top-level field of a request.
type Field struct {
	Name      string
	Treatment Treatment
	Required  bool
	// Schema is the JSON schema of the accepted values; "" if only null is accepted, which counts as not
	// given.
	Schema string
}

// FieldRow is a field in the table of an endpoint, with the function which reads its value. D is the decoder of a
// dialect. A row has either a Value, or Schema and Read.
type FieldRow[D any] struct {
	Name      string
	Treatment Treatment
	Required  bool

	Value Value

	Schema string
	Read   func(D) error
}

// FieldTable is the single declaration of the fields which the requests of an endpoint, or a JSON object inside
// them, may have. The decoder reads them with it; the API description and docs/fields.md list its Fields. It
// is immutable.
type FieldTable[D BodySource] struct {
	rows  []FieldRow[D]
	reads map[string]func(D) error
}

// NewTable returns the table of rows. It panics if two rows have the same name.
func NewTable[D BodySource](rows ...[]FieldRow[D]) *FieldTable[D] {
	t := &FieldTable[D]{rows: slices.Concat(rows...), reads: map[string]func(D) error{}}
	for _, row := range t.rows {
		read := row.Read
		if check := row.Value.Read; read == nil {
			read = func(d D) error { return check(d.Base()) }
		}
		t.reads[row.Name] = read
	}
	if len(t.reads) != len(t.rows) {
		panic("api: a table has two rows of one name")
	}
	return t
}

// Fields returns the fields, in the order of the table.
func (t *FieldTable[D]) Fields() []Field {
	fields := make([]Field, len(t.rows))
	for i, row := range t.rows {
		fields[i] = Field{row.Name, row.Treatment, row.Required, row.Schema}
		if row.Read == nil {
			fields[i].Schema = row.Value.Schema
		}
	}
	return fields
}

// DecodeBody decodes body, an object of the table's fields, into d. It reports all unknown keys together, and
// only if there is no other error.
func (t *FieldTable[D]) DecodeBody(d D, body []byte) error {
	b := d.Base()
	err := b.ReadBody(body, func() error {
		return b.ReadMemberBytes(func(key []byte) error {
			if read, ok := t.reads[string(key)]; ok {
				return read(d)
			}
			b.unknown.Add(string(key))
			return b.SkipValue()
		})
	})
	if err != nil {
		return err
	}
	return b.unknown.Err()
}

// ReadObject reads an object of the table's fields into d. It returns an error at the first unknown key.
func (t *FieldTable[D]) ReadObject(d D) error {
	b := d.Base()
	return b.ReadMemberBytes(func(key []byte) error {
		if read, ok := t.reads[string(key)]; ok {
			return read(d)
		}
		return b.UnsupportedError()
	})
}

// BorrowRows returns the rows of t with these names, in the order of t, for a decoder E which contains a D.
func BorrowRows[E, D BodySource](t *FieldTable[D], inner func(E) D, names ...string) []FieldRow[E] {
	var rows []FieldRow[E]
	for i, f := range t.Fields() {
		if !slices.Contains(names, f.Name) {
			continue
		}
		read := t.reads[t.rows[i].Name]
		rows = append(rows, FieldRow[E]{f.Name, f.Treatment, f.Required, Value{}, f.Schema, func(e E) error { return read(inner(e)) }})
	}
	return rows
}

// JSON schemas which several fields and answers share.
const (
	BoolSchema         = `{"type":"boolean"}`
	StringSchema       = `{"type":"string"}`
	ObjectSchema       = `{"type":"object"}`
	CountSchema        = `{"type":"integer","minimum":0}`
	StringOrNullSchema = `{"type":["string","null"]}`
	NullSchema         = `{"type":"null"}`
	EmptyArraySchema   = `{"type":"array","maxItems":0}`
	AnswerExtSchema    = `{"$ref":"#/components/schemas/AnswerExt"}` // of nvext in answers
)

// ClosedSchema returns the JSON schema of an object with these members and no others. members are names, each
// followed by its schema; a question mark after a name makes it optional.
func ClosedSchema(members ...string) string {
	var required, properties []string
	for i := 0; i < len(members); i += 2 {
		name, optional := strings.CutSuffix(members[i], "?")
		if !optional {
			required = append(required, `"`+name+`"`)
		}
		properties = append(properties, `"`+name+`":`+members[i+1])
	}
	return `{"type":"object","additionalProperties":false,"required":[` + strings.Join(required, ",") + `],"properties":{` + strings.Join(properties, ",") + `}}`
}

// AnyOfSchema returns the JSON schema of a value which matches one of schemas.
func AnyOfSchema(schemas ...string) string { return `{"anyOf":[` + strings.Join(schemas, ",") + `]}` }

// ArraySchema returns the JSON schema of an array whose elements match element.
func ArraySchema(element string) string { return `{"type":"array","items":` + element + `}` }

// ConstSchema returns the JSON schema of one string.
func ConstSchema(word string) string { return `{"const":"` + word + `"}` }

// EnumSchema returns the JSON schema of a string which is one of words.
func EnumSchema(words ...string) string { return `{"enum":["` + strings.Join(words, `","`) + `"]}` }

// IntegerSchema returns the JSON schema of an integer within [lo, hi]; strictjson.MaxCount as hi stands for no
// bound.
func IntegerSchema(lo, hi int64) string {
	schema := `{"type":"integer","minimum":` + strconv.FormatInt(lo, 10)
	if hi != strictjson.MaxCount {
		schema += `,"maximum":` + strconv.FormatInt(hi, 10)
	}
	return schema + `}`
}

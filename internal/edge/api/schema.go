package api

import (
	"strconv"
	"strings"

	"penstock/internal/strictjson"
)

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

package api

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

// Field is a top-level field of a request. Each dialect has a table of its fields; tests compare its decoder
// and the public API description with the table.
type Field struct {
	Name      string
	Treatment Treatment
	Required  bool
	// Schema is the JSON schema of the accepted values; "" if only null is accepted, which counts as not
	// given.
	Schema string
}

// RequiredField returns a mapped field which every request must have.
func RequiredField(name, schema string) Field { return Field{name, Mapped, true, schema} }

// MappedField returns a mapped field.
func MappedField(name, schema string) Field { return Field{name, Mapped, false, schema} }

// AcceptedField returns an accepted field.
func AcceptedField(name, schema string) Field { return Field{name, Accepted, false, schema} }

// RefusedField returns a refused field. schema describes the values which are accepted nevertheless.
func RefusedField(name, schema string) Field { return Field{name, Refused, false, schema} }

package api

// Treatment is what a dialect does with a field of a request.
type Treatment uint8

// The treatments.
const (
	// Mapped fields change the answer as those who defined them say.
	Mapped Treatment = iota
	// Accepted fields are read, checked and without effect: ignoring them cannot
	// change the answer.
	Accepted
	// Refused fields are answered with 400 and their name, but for values that ask
	// for what happens anyway.
	Refused
)

// String returns the treatment's name as documents print it.
func (t Treatment) String() string {
	return [...]string{"mapped", "accepted", "refused"}[t]
}

// Field is a top-level field of a request. Each dialect has a table of its own;
// what its decoder does and what is said of it in public are held against that.
type Field struct {
	Name      string
	Treatment Treatment
	Required  bool
	// Schema is the JSON schema of what is taken; "" if that is null only, which
	// is a field not given whatever its name.
	Schema string
}

// Needs is a mapped field that every request has.
func Needs(name, schema string) Field { return Field{name, Mapped, true, schema} }

// Maps is a mapped field.
func Maps(name, schema string) Field { return Field{name, Mapped, false, schema} }

// Accepts is an accepted field.
func Accepts(name, schema string) Field { return Field{name, Accepted, false, schema} }

// Refuses is a refused field; schema is what asks for what happens anyway.
func Refuses(name, schema string) Field { return Field{name, Refused, false, schema} }

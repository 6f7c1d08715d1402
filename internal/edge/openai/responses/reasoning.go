package responses

import (
	"slices"

	"penstock/internal/strictjson"
)

// reasoning reads one field of reasoning. Summaries are not made: the answer has
// the reasoning itself.
func (d *decoder) reasoning(key string) error {
	if none, err := d.Null(); none || err != nil {
		return err
	}
	switch key {
	case "effort":
		return d.effort()
	case "summary", "generate_summary":
		return d.usual("auto", "concise", "detailed")
	case "context":
		return d.usual("auto")
	case "mode":
		return d.usual("standard")
	}
	return d.Unsupported()
}

// effort reads how much the model should think, which its template is told.
func (d *decoder) effort() error {
	s, err := d.String()
	if err != nil {
		return err
	}
	efforts := []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}
	if !slices.Contains(efforts, s) {
		return d.Refuse("must be one of %q", efforts)
	}
	d.args.effort = s
	d.req.echo.effort = &s
	return nil
}

// templateArgs are variables for the chat template: the client's own, and those
// that the effort stands for.
type templateArgs struct {
	members []byte   // of the client's object, without its braces
	names   []string // of those members that an effort would set
	effort  string   // "" if not given
}

// read reads chat_template_kwargs.
func (t *templateArgs) read(r *strictjson.Reader) error {
	return r.Object(func(key string) error {
		value, err := r.Raw()
		if err != nil {
			return err
		}
		if key == "reasoning_effort" || key == "enable_thinking" || key == "thinking" {
			t.names = append(t.names, key)
		}
		t.add(key, compact(value))
		return nil
	})
}

func (t *templateArgs) add(key string, value []byte) {
	if len(t.members) > 0 {
		t.members = append(t.members, ',')
	}
	t.members = strictjson.AppendString(t.members, key)
	t.members = append(t.members, ':')
	t.members = append(t.members, value...)
}

// object returns all variables as a JSON object; nil if there are none. Templates
// know the effort as reasoning_effort, and no effort at all as enable_thinking or
// thinking being false. What the client set itself stays.
func (t *templateArgs) object() []byte {
	if t.effort != "" {
		t.set("reasoning_effort", strictjson.AppendString(nil, t.effort))
	}
	if t.effort == "none" {
		t.set("enable_thinking", []byte("false"))
		t.set("thinking", []byte("false"))
	}
	if len(t.members) == 0 {
		return nil
	}
	return slices.Concat([]byte{'{'}, t.members, []byte{'}'})
}

func (t *templateArgs) set(key string, value []byte) {
	if !slices.Contains(t.names, key) {
		t.add(key, value)
	}
}

package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
)

// modelDecoder is a decoder of two fields.
type modelDecoder struct {
	BodyDecoder
	echo bool
}

func modelRows() []FieldRow[*modelDecoder] {
	return []FieldRow[*modelDecoder]{
		{Name: "model", Required: true, Value: Model},
		{Name: "echo", Schema: AnyBool.Schema, Read: func(d *modelDecoder) error { return d.ReadBoolInto(&d.echo) }},
		{Name: "user", Treatment: Accepted, Value: AnyString},
		{Name: "audio", Treatment: Refused, Value: OnlyNull},
	}
}

func TestTableFields(t *testing.T) {
	want := []Field{
		{"model", Mapped, true, `{"type":"string"}`},
		{"echo", Mapped, false, `{"type":"boolean"}`},
		{"user", Accepted, false, `{"type":"string"}`},
		{"audio", Refused, false, ""},
	}
	if diff := cmp.Diff(want, NewTable(modelRows()).Fields()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTableDecodes: the table calls the function of each row, null counts as not given, and unknown keys are
// errors, reported last by DecodeBody and at once by ReadObject.
func TestTableDecodes(t *testing.T) {
	table := NewTable(modelRows())
	for _, tt := range []struct{ body, whole, object string }{
		{`{"model":"m","echo":true,"user":"u","audio":null}`, "", ""},
		{`{"a":1,"model":null,"b":[2]}`, "a|Unsupported parameter(s): a, b", "a|Unsupported parameter(s): a"},
		{`{"a":1,"echo":1}`, "echo|'echo' must be a boolean, not a number", "a|Unsupported parameter(s): a"},
		{`{"audio":{}}`, "audio|'audio' " + NotSupported, "audio|'audio' " + NotSupported},
		{`{"model":"m"} x`, "|the request body is not valid JSON: unexpected data after the end at byte 14", "|the request body is not valid JSON: unexpected data after the end at byte 14"},
	} {
		d := &modelDecoder{BodyDecoder: BodyDecoder{Req: &Request{}}}
		if got := describe(table.DecodeBody(d, []byte(tt.body))); got != tt.whole {
			t.Errorf("%s: DecodeBody returns %q, want %q", tt.body, got, tt.whole)
		}
		if tt.whole == "" && (d.Req.Model != "m" || !d.echo) {
			t.Errorf("%s is decoded to %+v", tt.body, d)
		}
		d = &modelDecoder{BodyDecoder: BodyDecoder{Req: &Request{}}}
		if got := describe(d.ReadBody([]byte(tt.body), func() error { return table.ReadObject(d) })); got != tt.object {
			t.Errorf("%s: ReadObject returns %q, want %q", tt.body, got, tt.object)
		}
	}
}

func describe(err error) string {
	if err == nil {
		return ""
	}
	f := AsFault(err)
	if f.Code != fault.Invalid {
		return err.Error()
	}
	return f.Param + "|" + f.Message
}

// TestBorrowRows: a table with borrowed rows reads them into the inner decoder.
func TestBorrowRows(t *testing.T) {
	type outer struct{ modelDecoder }
	borrowed := BorrowRows(NewTable(modelRows()), func(o *outer) *modelDecoder { return &o.modelDecoder }, "user", "echo")
	table := NewTable(borrowed)
	want := []Field{{"echo", Mapped, false, AnyBool.Schema}, {"user", Accepted, false, AnyString.Schema}}
	if diff := cmp.Diff(want, table.Fields()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	o := &outer{}
	if err := table.DecodeBody(o, []byte(`{"user":"u","echo":true}`)); err != nil || !o.echo {
		t.Errorf("%v, echo %v", err, o.echo)
	}
}

func TestTableRefusesTwins(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a table has two rows of one name")
		}
	}()
	NewTable(modelRows(), modelRows()[1:2])
}

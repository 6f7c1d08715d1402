package prep

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
)

// spy is a tokenizer that notes what it is asked to encode.
type spy struct {
	Tokenizer
	calls []string
}

func (s *spy) Encode(dst []kv.Token, text string, opts EncodeOptions) []kv.Token {
	s.calls = append(s.calls, fmt.Sprintf("%q %+v", text, opts))
	return append(dst, kv.Token(len(s.calls)))
}

// fixed is a template that always gives the same.
type fixed struct {
	segments []Segment
	err      error
}

func (f fixed) Render(dst []Segment, _ *Chat) ([]Segment, error) {
	return append(dst, f.segments...), f.err
}

func TestEncodeChatJoinsSegmentsOfAKind(t *testing.T) {
	s := new(spy)
	p := &Pipeline{Tokenizer: s, Template: fixed{segments: []Segment{
		{"<a>", true},
		{"<b>", true},
		{"user\n", false},
		{"Hel", false},
		{"lo", false},
		{"<c>", true},
		{"", false},
		{"<d>", true},
	}}}
	got, err := p.EncodeChat([]kv.Token{7}, &Chat{})
	if err != nil || !slices.Equal(got, []kv.Token{7, 1, 2, 3, 4, 5}) {
		t.Errorf("%v, %v", got, err)
	}
	want := []string{
		`"<a><b>" {ParseSpecial:true AddSpecial:false Limit:0}`,
		`"user\nHello" {ParseSpecial:false AddSpecial:false Limit:0}`,
		`"<c>" {ParseSpecial:true AddSpecial:false Limit:0}`,
		`"" {ParseSpecial:false AddSpecial:false Limit:0}`,
		`"<d>" {ParseSpecial:true AddSpecial:false Limit:0}`,
	}
	if !slices.Equal(s.calls, want) {
		t.Errorf("encoded\n%s\nwant\n%s", strings.Join(s.calls, "\n"), strings.Join(want, "\n"))
	}
}

func TestEncodeChatRefused(t *testing.T) {
	refused := fault.New(fault.Invalid, "no")
	p := &Pipeline{Tokenizer: new(spy), Template: fixed{err: refused}}
	if got, err := p.EncodeChat([]kv.Token{7}, &Chat{}); !errors.Is(err, refused) || !slices.Equal(got, []kv.Token{7}) {
		t.Errorf("%v, %v", got, err)
	}
	p.Template = nil
	if got, err := p.EncodeChat([]kv.Token{7}, &Chat{}); fault.CodeOf(err) != fault.Unimplemented || !slices.Equal(got, []kv.Token{7}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestEncodeText(t *testing.T) {
	s := new(spy)
	p := &Pipeline{Tokenizer: s}
	if got := p.EncodeText([]kv.Token{7}, "a <b>"); !slices.Equal(got, []kv.Token{7, 1}) {
		t.Errorf("%v", got)
	}
	if want := `"a <b>" {ParseSpecial:true AddSpecial:true Limit:0}`; len(s.calls) != 1 || s.calls[0] != want {
		t.Errorf("encoded %v, want %s", s.calls, want)
	}
}

// joiner is a tokenizer that takes segments as one text.
type joiner struct{ spy }

func (j *joiner) EncodeSegments(dst []kv.Token, segments []Segment, _ int) []kv.Token {
	j.calls = append(j.calls, fmt.Sprint(segments))
	return append(dst, 1)
}

func TestEncodeChatAsOneText(t *testing.T) {
	j := new(joiner)
	p := &Pipeline{Tokenizer: j, Template: fixed{segments: []Segment{{"<a>", true}, {"user\n", false}}}}
	got, err := p.EncodeChat([]kv.Token{7}, &Chat{})
	if err != nil || !slices.Equal(got, []kv.Token{7, 1}) || !slices.Equal(j.calls, []string{"[{<a> true} {user\n false}]"}) {
		t.Errorf("%v, %v, %q", got, err, j.calls)
	}
}

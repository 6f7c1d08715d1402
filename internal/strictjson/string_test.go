package strictjson

import (
	"math/rand/v2"
	"testing"
)

// TestPlainRun: what a run steps over has no meaning in a string, and what it stops at within eight
// bytes has.
func TestPlainRun(t *testing.T) {
	const bytes = "\"\\\x00\x1f !#[]\x7f\x80\xa2\xdc\xffaaaaaaaaaaaaaaaaaaaa"
	rng := rand.New(rand.NewPCG(1, 8))
	for range 100_000 {
		s := make([]byte, rng.IntN(40))
		for i := range s {
			s[i] = bytes[rng.IntN(len(bytes))]
		}
		want := 0
		for want < len(s) && s[want] != '"' && s[want] != '\\' && s[want] >= ' ' {
			want++
		}
		if want > len(s)/8*8 || want == len(s) {
			want = len(s) / 8 * 8
		}
		if got := plainRun(s); got != want {
			t.Fatalf("%q: %d plain bytes, want %d", s, got, want)
		}
	}
}

func TestAppendMembers(t *testing.T) {
	b := AppendMember([]byte("{"), `"a":`, "x\n")
	b = AppendMember(b, `,"b":`, []byte(`"`))
	b = AppendOptional(b, `,"c":`, "")
	b = AppendOptional(b, `,"d":`, "y")
	b = append(AppendInt(b, `,"e":`, -7), `,"f":[`...)
	for i := range 3 {
		b = AppendInt(AppendComma(b, i), "", i)
	}
	if got, want := string(append(b, "]}"...)), `{"a":"x\n","b":"\"","c":null,"d":"y","e":-7,"f":[0,1,2]}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

package bus

import (
	"testing"
)

func TestKeyToken(t *testing.T) {
	for key, want := range map[string]string{
		"":         "=",
		"worker-1": "worker-1",
		"123/0":    "123/0",
		"a.b":      "a=2Eb",
		"*":        "=2A",
		"=":        "=3D",
		"é":        "=C3=A9",
		"\x00 \n":  "=00=20=0A",
	} {
		if got := string(appendKey(nil, key)); got != want {
			t.Errorf("key %q is written %q, want %q", key, got, want)
		}
	}
	for _, token := range []string{"", "a.b", "=4", "=41", "=2e", "=GG", "a=", "==", "=3D=", " ", "\xff", "*"} {
		if key, err := decodeKey(token); err == nil {
			t.Errorf("token %q was read as %q", token, key)
		}
	}
}

// Any token either is refused or is exactly what its key is written as, and any
// key comes back from its token.
func FuzzDecodeKey(f *testing.F) {
	for _, s := range []string{"", "=", "==", "a", "a=2Eb", "=41", "=2", "=FF", "a.b", "/:-_"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if key, err := decodeKey(s); err == nil {
			if again := string(appendKey(nil, key)); again != s {
				t.Errorf("token %q is key %q, which is written %q", s, key, again)
			}
		}
		if len(s) > MaxKey {
			return
		}
		token := string(appendKey(nil, s))
		if key, err := decodeKey(token); err != nil || key != s {
			t.Errorf("key %q is written %q, which is read as %q, %v", s, token, key, err)
		}
	})
}
